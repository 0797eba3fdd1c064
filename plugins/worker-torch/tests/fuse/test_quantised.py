"""Quantised matrices instead of linear layers: merged, with biases, or left to floats."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tenonry_torch_base.quantisations import Quantisation, QuantisedLinear, QuantisedWeight
from tenonry_worker_torch.fuse.linear import DenseLinear, PartedLinear, merge
from tenonry_worker_torch.fuse.quantised import QuantisedPacking, SideBySide
from tenonry_worker_torch.loading.quantised import STORED_WEIGHT

SIZES = (6, 4, 4)
IN = 8


class FloatProduct(QuantisedLinear):
    """Exact, so that only the assigned matrices and biases are tested."""

    def __init__(self, weight, bias):
        self.weight = weight.dequantised()
        self.bias = bias

    def __call__(self, x):
        return torch.nn.functional.linear(x, self.weight, self.bias)


class Halves(Quantisation):
    """Steps of a half."""

    name = "halves"
    tolerance = 0.1

    @classmethod
    def refusal(cls, device, dtype):
        return None

    def quantise(self, weight):
        return stored(weight)

    def linear(self, weight, bias, dtype):
        return FloatProduct(weight, bias)


class LeavesAll(Halves):
    def linear(self, weight, bias, dtype):
        return None


def stored(weight, groups=1):
    return QuantisedWeight(
        bits=8,
        values=(weight * 2).round().to(torch.int8),
        scales=torch.full((len(weight), groups), 0.5),
    )


def modules(*biases, dtype=torch.float32):
    torch.manual_seed(3)
    made = []
    for size, has_bias in zip(SIZES, biases or (True, False, True), strict=True):
        module = nn.Linear(IN, size, bias=has_bias).requires_grad_(False)
        module.weight.copy_(torch.randint(-8, 8, module.weight.shape) / 2)
        made.append(module.to(dtype))
    return made


def expected(parts, x):
    return torch.cat([part(x) for part in parts], 1)


@pytest.mark.parametrize("layer", [PartedLinear, merge])
@pytest.mark.parametrize("biases", [(True, False, True), (False, False, False)])
def test_layers_that_read_the_same_input_become_one_at_load(layer, biases):
    parts = modules(*biases)
    x = torch.randn(5, IN)
    wanted = expected(parts, x)
    packing = QuantisedPacking(Halves(), torch.float32)
    made = layer(parts).packed(packing)
    assert isinstance(made, FloatProduct)
    torch.testing.assert_close(made(x), wanted)
    torch.testing.assert_close(made.add(x, wanted), 2 * wanted)
    assert all(part.weight.numel() == 0 for part in parts)
    assert packing.text == "1 matrices in 1.68e-07 GB"


@pytest.mark.parametrize("layer", [PartedLinear, merge])
def test_what_a_checkpoint_holds_is_taken_from_the_modules(layer):
    parts = modules()
    x = torch.randn(5, IN)
    wanted = expected(parts, x)
    for part in parts:
        setattr(part, STORED_WEIGHT, stored(part.weight))
    made = layer(parts).packed(QuantisedPacking(Halves({}), torch.float32))
    assert isinstance(made, FloatProduct)
    torch.testing.assert_close(made(x), wanted)
    assert not any(hasattr(part, STORED_WEIGHT) for part in parts)


def test_matrices_that_are_too_different_stay_apart():
    parts = modules()
    x = torch.randn(5, IN)
    wanted = expected(parts, x)
    for part, groups in zip(parts, (1, 2, 4), strict=True):
        setattr(part, STORED_WEIGHT, stored(part.weight, groups))
    made = PartedLinear(parts).packed(QuantisedPacking(Halves({}), torch.float32))
    assert isinstance(made, SideBySide)
    torch.testing.assert_close(made(x), wanted)
    torch.testing.assert_close(made.add(x, wanted), 2 * wanted)


def test_one_matrix_of_floats_leaves_all_of_them_floats():
    parts = modules()
    x = torch.randn(5, IN)
    wanted = expected(parts, x)
    setattr(parts[0], STORED_WEIGHT, stored(parts[0].weight))
    packing = QuantisedPacking(Halves({}), torch.float32)
    made = PartedLinear(parts).packed(packing)
    assert isinstance(made, PartedLinear)
    torch.testing.assert_close(made(x), wanted)
    assert packing.text == "0 matrices in 0 GB, 1 others as floats"
    assert not any(hasattr(part, STORED_WEIGHT) for part in parts)


def test_what_is_left_is_left_as_it_is():
    parts = PartedLinear(modules(dtype=torch.bfloat16))
    assert parts.packed(QuantisedPacking(LeavesAll(), torch.bfloat16)) is parts


def test_a_head_that_shares_the_embedding_leaves_it_its_weight():
    (part, *_) = modules()
    head = DenseLinear(part.weight, None, sources=())
    made = head.packed(QuantisedPacking(Halves(), torch.float32))
    assert isinstance(made, FloatProduct)
    assert part.weight.numel() == SIZES[0] * IN


def test_groups_in_any_order_are_dequantised_and_put_side_by_side():
    order = torch.tensor([1, 0, 1, 0])
    weight = QuantisedWeight(
        bits=4,
        values=torch.tensor([[1, 2, 3, 4]], dtype=torch.int8),
        scales=torch.tensor([[10.0, 1.0]]),
        zeros=torch.tensor([[1, 2]], dtype=torch.int16),
        group_of=order,
    )
    assert weight.dequantised().tolist() == [[-1.0, 10.0, 1.0, 30.0]]
    both = QuantisedWeight.side_by_side([weight, weight])
    assert both.dequantised().tolist() == [[-1.0, 10.0, 1.0, 30.0]] * 2
    others = QuantisedWeight(
        bits=4,
        values=weight.values,
        scales=weight.scales,
        zeros=weight.zeros,
        group_of=order.flip(0),
    )
    assert QuantisedWeight.side_by_side([weight, others]) is None
