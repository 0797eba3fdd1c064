"""Models whose steps cannot be repeated are served without graphs, and a line has the reason."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch
from plain_backend import PlainBackend

from tenonry_torch_base.attention.base import LayerSpec
from tenonry_torch_base.attention.sdpa import SdpaBackend
from tenonry_torch_base.parallel.groups import alone
from tenonry_worker_torch.fuse.decoder import FusedForward
from tenonry_worker_torch.passes.order import device_passes
from tenonry_worker_torch_cuda.passes.graphs import Graphs

CPU = torch.device("cpu")
SPEC = LayerSpec(
    name="layer", index=0, num_heads=2, num_kv_heads=1, key_size=8, value_size=8, scaling=0.3
)


def backend(kind=PlainBackend):
    made = kind([SPEC], torch.float32, CPU)
    made.allocate(2, 4)
    return made


def model(**other):
    facts = {
        "adapters": None, "images": None, "pooler": None, "lengths": None, "states": None, "parallel": alone(),
        "device": CPU, "backend": backend(), "forward": FusedForward(None, [], {}, None, None), "make_pass": None,
    }  # fmt: skip
    return SimpleNamespace(**(facts | other))


def ranks(size=1, stages=1, experts=None):
    return SimpleNamespace(
        tensor=SimpleNamespace(size=size), link=SimpleNamespace(num_stages=stages), experts=experts
    )


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"adapters": object()}, "adapters are chosen in each step; --max-loras 0"),
        ({"images": object()}, "images are placed in each step; --max-images 0"),
        ({"states": object()}, "depend on more than its tokens"),
        ({"lengths": object()}, "depend on more than its tokens"),
        ({"parallel": ranks(size=2)}, "ranks exchange data"),
        ({"parallel": ranks(stages=2)}, "ranks exchange data"),
        ({"parallel": ranks(experts=object())}, "ranks exchange data"),
        ({"forward": object()}, "the model runs its own code"),
        ({"backend": backend(SdpaBackend)}, "'sdpa' plans each step by its lengths; use triton"),
    ],
)
def test_a_model_that_is_not_for_graphs_is_refused_with_the_reason(caplog, other, reason):
    with caplog.at_level(logging.INFO, "tenonry.worker"):
        assert reason in Graphs().why_not(model(**other), None)
    (line,) = [each.message for each in caplog.records]
    assert line.startswith("CUDA graphs disabled, launching steps kernel by kernel: ")
    assert reason in line


def test_others_are_not():
    assert Graphs().why_not(model(), None) is None


def test_the_pass_is_that_of_the_device():
    assert Graphs in device_passes("cuda")
    assert Graphs not in device_passes("cpu")
