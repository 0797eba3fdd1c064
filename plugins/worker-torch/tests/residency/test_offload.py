"""Weights leave a device and return to the same module. The device is the CPU's memory under another name."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import worker_families
import worker_tools
from residency_tools import answers, changed, started, wanted
from torch import nn

from tenonry_worker_torch.residency.offload import OffloadedModel, storages_of, tensors_of

pytestmark = pytest.mark.slow  # whole models

DEVICE = torch.device("meta")  # neither the CPU nor CUDA: nothing waits for it


def model():
    torch.manual_seed(0)
    module = nn.ModuleDict({"a": nn.Linear(7, 5), "b": nn.Linear(7, 5), "c": nn.Linear(3, 3)})
    merged = torch.cat([module["a"].weight.detach(), module["b"].weight.detach()])
    module["a"].weight = nn.Parameter(merged[:5], requires_grad=False)
    module["b"].weight = nn.Parameter(merged[5:], requires_grad=False)
    module["c"].register_buffer("table", torch.randn(11).bfloat16(), persistent=False)
    module["d"] = module["c"]
    return SimpleNamespace(
        module=module.requires_grad_(False), device=DEVICE, quantised_layers=()
    ), merged


@pytest.mark.parametrize("block_bytes", [1, 100, 1 << 20])
def test_views_ties_and_buffers_return_to_their_places(block_bytes):
    held, merged = model()
    before = [tensor.clone() for tensor in (*tensors_of(held.module), merged)]
    objects = [*tensors_of(held.module), merged]
    offloaded = OffloadedModel(held, block_bytes)
    assert {tensor.untyped_storage().nbytes() for tensor in objects} == {0}
    assert offloaded.restore() is held
    assert all(torch.equal(now, then) for now, then in zip(objects, before, strict=True))
    assert held.module["a"].weight.data_ptr() == merged.data_ptr()


def test_a_wake_up_without_memory_leaves_nothing_on_the_device():
    held, merged = model()
    offloaded = OffloadedModel(held)
    first, *others = offloaded.storages
    offloaded.storages[:] = [first, NoMemory(), *others]
    with pytest.raises(torch.OutOfMemoryError):
        offloaded.restore()
    assert first.nbytes() == 0
    offloaded.storages[:] = [first, *others]
    offloaded.restore()
    assert merged.untyped_storage().nbytes()


class NoMemory:
    def resize_(self, size):
        if size:
            raise torch.OutOfMemoryError("full")


class Layer:
    __slots__ = ("scale", "values")

    def __init__(self):
        self.scale = 2.0
        self.values = torch.arange(9.0)


def test_quantised_layers_outside_of_modules_leave_as_well():
    held, _ = model()
    held.quantised_layers = [Layer(), SimpleNamespace(weight=torch.ones(3), bias=None)]
    offloaded = OffloadedModel(held)
    first, second = held.quantised_layers
    assert not storages_of([first.values, second.weight])
    offloaded.restore()
    assert torch.equal(first.values, torch.arange(9.0))
    assert torch.equal(second.weight, torch.ones(3))


def test_each_storage_counts_once():
    held, merged = model()
    sizes = [storage.nbytes() for storage in storages_of(tensors_of(held.module))]
    assert sorted(sizes) == sorted([merged.nbytes, 20, 20, 36, 12, 22])


def on_a_device(worker):
    """The worker, with weights in memory that can be given back, as a device's."""
    model = worker.residency.model
    for tensor in tensors_of(model.module):
        tensor.data = tensor.data.clone()
    model.device = DEVICE
    return model


@pytest.mark.parametrize("family", ["llama-biased", "mixtral"])
def test_a_worker_serves_with_the_module_that_slept(tmp_path, family):
    worker_families.save(family, tmp_path / "model")
    worker = started(tmp_path / "model", fuse=False)
    assert answers(worker) == worker_tools.generated(family)
    model = on_a_device(worker)
    worker.sleep(1)
    assert worker.is_sleeping()
    with pytest.raises(RuntimeError, match="sleeps"):
        _ = worker.residency.model
    assert not storages_of(tensors_of(model.module))
    worker.wake_up(["weights"])
    assert worker.is_sleeping()
    worker.wake_up(["kv_cache"])
    assert worker.residency.model is model
    model.device = torch.device("cpu")
    assert answers(worker) == worker_tools.generated(family)


def test_deeper_sleep_drops_the_copies(tmp_path):
    worker_families.save("llama", tmp_path / "model")
    worker = started(tmp_path / "model", fuse=False)
    model = on_a_device(worker)
    worker.sleep(1)
    worker.sleep(2)
    worker.wake_up()
    assert worker.residency.model is not model
    assert answers(worker) == worker_tools.generated("llama")


def test_new_weights_come_to_sleeping_ones(tmp_path):
    worker_families.save("llama", tmp_path / "model")
    worker = started(tmp_path / "model", fuse=False)
    on_a_device(worker)
    worker.sleep(1)
    new = changed(worker_families.build("llama"))
    new.save_pretrained(tmp_path / "new")
    worker.check_update(str(tmp_path / "new"))
    worker.update_weights(str(tmp_path / "new"))
    worker.wake_up()
    assert answers(worker) == wanted(new)
