from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

# The helper next to the tests, importable by its bare name whatever the import mode.
_spec = importlib.util.spec_from_file_location(
    "quantised_models", Path(__file__).parent / "quantised_models.py"
)
_module = importlib.util.module_from_spec(_spec)
sys.modules["quantised_models"] = _module
_spec.loader.exec_module(_module)


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small tensors gain nothing from threads, and tests share the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
