from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

# The helpers next to the tests, importable by their bare names whatever the import mode.
for name in ("quantised_answers", "quantised_models"):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small tensors gain nothing from threads, and tests share the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
