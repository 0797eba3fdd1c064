"""Weights go to a device tensor by tensor, so main memory never holds the model. The device is `meta`."""

from __future__ import annotations

import importlib.util
import logging
import threading
import weakref

import pytest
import torch
import worker_families

from tenonry_torch_base.checkpoint import Checkpoint
from tenonry_torch_base.parallel.groups import Link, Parallel, TensorGroup
from tenonry_torch_base.weights import placed_on
from tenonry_worker_torch.loading.load import load_model, look

META = torch.device("meta")
READERS = 4  # threads of transformers


class Live:
    """Bytes of tensors in main memory that live together."""

    def __init__(self):
        self.bytes = self.peak = self.largest = self.total = 0
        self._lock = threading.Lock()

    def add(self, tensor):
        size = tensor.nbytes
        with self._lock:
            self.bytes += size
            self.total += size
            self.peak = max(self.peak, self.bytes)
            self.largest = max(self.largest, size)
        weakref.finalize(tensor, self._drop, size)
        return tensor

    def _drop(self, size):
        with self._lock:
            self.bytes -= size


class Watched:
    def __init__(self, part, live):
        self._part, self._live = part, live

    def get_shape(self):
        return self._part.get_shape()

    def get_dtype(self):
        return self._part.get_dtype()

    def __getitem__(self, index):
        return self._live.add(self._part[index])


@pytest.fixture
def live(monkeypatch):
    found, slices = Live(), Checkpoint.slices

    def watched(self, open_files):
        return {key: Watched(part, found) for key, part in slices(self, open_files).items()}

    monkeypatch.setattr(Checkpoint, "slices", watched)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama")
    worker_families.save("llama", path)
    return path


def load(folder, device, parallel=None):
    return load_model(
        str(folder), load_format="auto", dtype="auto", device=device, seed=0, parallel=parallel
    )


@pytest.mark.parametrize("parallel", [None, Parallel(TensorGroup(0, 2), Link())])
def test_main_memory_holds_a_few_tensors_at_a_time(folder, live, parallel):
    model = load(folder, META, parallel)
    assert {tensor.device for tensor in (*model.parameters(), *model.buffers())} == {META}
    assert live.peak <= (READERS + 1) * live.largest < live.total
    assert not live.bytes


def test_a_cpu_keeps_what_it_reads(folder):
    assert placed_on(torch.device("cpu")) == {}
    model = load(folder, torch.device("cpu"))
    assert {tensor.device.type for tensor in model.parameters()} == {"cpu"}


def test_without_accelerate_the_model_moves_as_a_whole(folder, monkeypatch, caplog):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "accelerate" else found(name)
    )
    with caplog.at_level(logging.WARNING, "tenonry.worker"):
        assert placed_on(META) == {}
    assert "pip install accelerate" in caplog.text


def test_the_checkpoint_is_examined_without_a_device(folder):
    assert look(str(folder), load_format="auto").whole.device == META
