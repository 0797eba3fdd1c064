from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

WORKER = Path(__file__).parents[2] / "worker-torch" / "tests"


def _load(name):
    """Load a helper of the worker's tests by its bare name, whatever the import mode."""
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, WORKER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


for _name in ("worker_families", "state_families", "worker_driver", "worker_tools", "lora_tools"):
    _load(_name)


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small tensors gain nothing from threads, and tests share the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
