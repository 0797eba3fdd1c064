"""Passes of weights: reasons not to run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tenonry.errors import ModelError
from tenonry_worker_torch.passes.model_pass import NotUsed
from tenonry_worker_torch.passes.weights import Quantise

MODEL = SimpleNamespace(
    device=torch.device("meta"), matrix_kernels=None, forward=None, module=torch.nn.Identity()
)


def facts(config):
    return SimpleNamespace(quantisation=SimpleNamespace(name="int8", config=config))


def test_weights_of_a_checkpoint_become_floats_without_kernels():
    assert Quantise().why_not(MODEL, facts({})) is None
    with pytest.raises(NotUsed, match="there are no kernels for quantised matrices"):
        Quantise().apply(MODEL, facts({}), None)


def test_quantisation_that_was_asked_for_is_an_error_without_kernels():
    with pytest.raises(
        ModelError, match=r"quantization=int8: no kernels .* run on meta; pip install"
    ):
        Quantise().why_not(MODEL, facts(None))
