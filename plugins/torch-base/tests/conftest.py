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


_load("forked_programs")
_load("sampler_driver")
_load("kept_vectors")


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small tensors gain nothing from threads, and tests share the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
