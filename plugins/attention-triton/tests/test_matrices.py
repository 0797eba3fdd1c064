"""Layers over quantised matrices: the one that a matrix gets. Needs no Triton, no GPU."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch

from tenonry_attention_triton.matrices import PackedLinear, ScaledLinear, TritonMatrices
from tenonry_attention_triton.matrix_pass import TritonMatrixPass
from tenonry_torch_base.quantisations import QuantisedWeight

CPU = torch.device("cpu")


def matrix(outputs=64, inputs=128, groups=1, *, bits=8, floats=True, group_of=None):
    torch.manual_seed(0)
    values = torch.randn(outputs, inputs).to(torch.float8_e4m3fn)
    if not floats:
        most = 1 << (bits - 1)
        values = torch.randint(-most, most, (outputs, inputs)).to(torch.int8)
    scales = torch.rand(outputs, groups) + 0.1
    return QuantisedWeight(bits=bits, values=values, scales=scales, group_of=group_of)


def kernels(dtype=torch.bfloat16):
    return TritonMatrices(CPU, dtype)


def test_fp8_with_a_scale_per_output_is_multiplied_in_fp8():
    layer = kernels().layer(matrix(), None)
    assert isinstance(layer, ScaledLinear)
    assert layer(torch.zeros(0, 128)).shape == (0, 64)


@pytest.mark.parametrize(
    "weight", [matrix(inputs=160, groups=5), matrix(outputs=60), matrix(bits=8, floats=False)]
)
def test_other_matrices_in_8_bits_are_read_as_such(weight):
    assert isinstance(kernels().layer(weight, None), PackedLinear)


def test_what_torch_does_not_multiply_is_read_as_such(monkeypatch, caplog):
    def refuse(*args, **options):
        raise RuntimeError("only row-wise scaling\nmore")

    monkeypatch.setattr(torch, "_scaled_mm", refuse)
    with caplog.at_level(logging.INFO, "tenonry.worker"):
        assert isinstance(kernels().layer(matrix(), None), PackedLinear)
    (line,) = [each.message for each in caplog.records]
    assert line.endswith("only row-wise scaling")


@pytest.mark.parametrize(
    "weight",
    [
        matrix(inputs=80, groups=5, bits=4, floats=False),  # groups of 16
        matrix(groups=2, bits=4, floats=False, group_of=torch.tensor([0] * 100 + [1] * 28)),
    ],
)
def test_groups_that_no_kernel_takes_are_left_to_floats(weight):
    assert kernels().layer(weight, None) is None


def test_a_layer_in_4_bits_takes_half_an_octet_per_weight():
    weight = matrix(groups=4, bits=4, floats=False)
    layer = kernels().layer(weight, None)
    assert layer.packed_octets.nbytes == 64 * 128 // 2


def test_the_pass_is_for_quantised_weights(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    model = SimpleNamespace(dtype=torch.bfloat16, device=CPU)
    facts = SimpleNamespace(quantisation=None)
    assert TritonMatrixPass().why_not(model, facts) == "the weights are floats"
    facts.quantisation = object()
    assert TritonMatrixPass().why_not(model, facts)
