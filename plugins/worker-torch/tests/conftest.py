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


for _name in (
    "worker_families",
    "state_families",
    "worker_driver",
    "worker_wrappers",
    "worker_images",
    "worker_tools",
    "parallel_tools",
    "lora_tools",
    "planted_faults",
    "residency_tools",
):
    _load(_name)


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small tensors gain nothing from threads, and tests share the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
