from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch


def _load(name):
    """Load a helper next to the tests by its bare name, whatever the import mode."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


for _name in ("recorded_graphs", "plain_backend", "row_schedule"):
    _load(_name)


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small tensors gain nothing from threads, and tests share the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def busy_device():
    """Keeps the current stream of the CUDA device busy, for about a second; returns an event that follows."""

    def start():
        torch.cuda.synchronize()
        torch.cuda._sleep(2_000_000_000)
        after = torch.cuda.Event()
        after.record()
        return after

    yield start
    torch.cuda.synchronize()
