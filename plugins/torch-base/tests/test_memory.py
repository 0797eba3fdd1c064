from __future__ import annotations

import gc
import sys
import weakref

import pytest
import torch

from tenonry.errors import ConfigError
from tenonry_torch_base.memory import (
    GIB,
    fitting,
    free_device_memory,
    host_memory,
    is_frozen,
    keep_freed_memory,
    return_freed_memory,
    skipping_old_objects,
)


def test_memory_is_what_the_control_group_leaves(tmp_path):
    machine = host_memory(tmp_path)
    assert machine > 0
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    assert host_memory(tmp_path) == 2_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert host_memory(tmp_path) == pytest.approx(machine, rel=0.5)


CUDA = torch.device("cuda", 0)


@pytest.fixture
def card(monkeypatch):
    """A GPU of 80 GiB: `card(free=…, own=…)`, in GiB."""

    def hold(free, own):
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free * GIB, 80 * GIB))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: own * GIB)

    return hold


def test_the_cache_takes_what_a_share_leaves(card):
    card(free=60, own=19)
    assert free_device_memory(CUDA, 0.5, 4 * GIB) == 16 * GIB


def test_two_engines_on_one_gpu_are_told_to_share_it(card):
    card(free=8, own=16)
    with pytest.raises(
        ConfigError, match=r"other processes hold 56\.0 of the 80\.0 GiB.*add up to less"
    ):
        free_device_memory(CUDA, 0.9, GIB)


def test_a_model_that_does_not_fit_is_refused_with_what_fits(card):
    card(free=2, own=50)
    with (
        pytest.raises(
            ConfigError, match=r"into cuda:0 of 80\.0 GiB, .* hold 28\.0: .*int4, or more GPUs"
        ) as raised,
        fitting(CUDA),
    ):
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total"
        )
    assert "Tried" not in str(raised.value)
    with pytest.raises(KeyError), fitting(CUDA):
        raise KeyError("another error")


def test_a_model_that_is_too_large_by_itself_leaves_nothing(card):
    card(free=8, own=71)
    assert free_device_memory(CUDA, 0.9, GIB) == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a switch of glibc")
def test_glibc_agrees_to_keep_freed_memory():
    assert keep_freed_memory() in {True, False}


class Cycle:
    """Garbage that only a collection finds."""

    def __init__(self):
        self.itself = self


@pytest.mark.slow
def test_garbage_among_frozen_objects_is_freed_and_the_rest_stays_frozen():
    """A process freezes the objects of its start, which include a model that is released later."""
    cycle = weakref.ref(Cycle())
    gc.freeze()
    assert cycle() is not None
    return_freed_memory()
    assert cycle() is None
    assert gc.get_freeze_count()


@pytest.fixture
def thaw():
    """Freeze nothing within the test, and as before after it."""
    frozen = gc.get_freeze_count()
    gc.unfreeze()
    yield
    gc.unfreeze()
    if frozen:
        gc.freeze()


@pytest.mark.usefixtures("thaw")
def test_objects_made_after_a_freeze_are_not_frozen():
    old = Cycle()
    gc.freeze()
    new = Cycle()
    assert (is_frozen(old), is_frozen(new)) == (True, False)


@pytest.mark.slow
@pytest.mark.usefixtures("thaw")
def test_only_new_garbage_is_collected():
    old = weakref.ref(Cycle())
    with skipping_old_objects():
        new = weakref.ref(Cycle())
        return_freed_memory(skip_frozen=True)
        assert new() is None
        assert old() is not None
    assert not gc.get_freeze_count()


@pytest.mark.slow
@pytest.mark.usefixtures("thaw")
def test_a_process_with_frozen_objects_gets_no_more_of_them():
    """A model that is replaced later is found by the next collection."""
    gc.freeze()
    frozen = gc.get_freeze_count()
    with skipping_old_objects():
        made = [Cycle() for _ in range(1000)]
    assert gc.get_freeze_count() <= frozen
    assert made
