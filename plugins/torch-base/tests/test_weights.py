"""Errors of loading, and the memory that transformers reserves for floats."""

from __future__ import annotations

import pytest
import torch
from transformers import modeling_utils

from tenonry.errors import ModelError
from tenonry_torch_base.weights import reserving_nothing, weights_of


def test_errors_name_model_and_folder():
    text = r"weights of Llama in /there cannot be loaded: broken"
    with pytest.raises(ModelError, match=text), weights_of("Llama", "/there"):
        raise ValueError("broken")


def test_a_device_without_memory_is_no_fault_of_the_model():
    """Callers name the memory that is missing."""
    with pytest.raises(torch.OutOfMemoryError), weights_of("Llama", "/there"):
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_transformers_reserves_nothing(monkeypatch):
    calls = []
    monkeypatch.setattr(
        modeling_utils, "caching_allocator_warmup", lambda *given: calls.append(given)
    )
    with reserving_nothing():
        modeling_utils.caching_allocator_warmup(None, {}, None)
    assert not calls
    modeling_utils.caching_allocator_warmup(None, {}, None)
    assert len(calls) == 1
