"""Quantised weights in blocks, read element by element as documented."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tenonry_torch_base.low_bit import LowBitWeight, empty_weight, low_bit_weight
from tenonry_torch_base.quantisations import QuantisedWeight


def matrix(seed, bits, outputs, inputs, groups=1, *, has_zeros=False):
    torch.manual_seed(seed)
    middle = 1 << (bits - 1)
    zeros = torch.randint(-middle, middle, (outputs, groups)).short() if has_zeros else None
    return QuantisedWeight(
        bits=bits,
        values=torch.randint(-middle, middle, (outputs, inputs)).to(torch.int8),
        scales=torch.rand(outputs, groups),
        zeros=zeros,
    )


def element(weight: LowBitWeight, output: int, column: int) -> float:
    """As the description of `LowBitWeight` reads."""
    block, row = divmod(output, 64)
    if weight.bits == 8:
        stored = int(weight.blocks[block, column // 4, row, column % 4])
    else:
        octet = int(weight.blocks[block, column // 8, row, column % 4])
        stored = octet & 15 if column % 8 < 4 else octet >> 4
    group = column // (weight.inputs // weight.num_groups)
    zero = 2 ** (weight.bits - 1)
    if weight.zeros is not None:
        zero = float(weight.zeros[block, group, row])
    scale = float(weight.scales[block, group, row])
    if weight.minimums is not None:
        return stored * scale + float(weight.minimums[block, group, row])
    return (stored - zero) * scale


@pytest.mark.parametrize("bits", [4, 8])
@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 2**31), st.integers(1, 130), st.integers(1, 40), st.integers(1, 3), st.booleans()
)
def test_every_element_is_where_it_is_said_to_be(bits, seed, outputs, inputs, groups, has_zeros):
    if groups > 1:
        inputs = 32 * groups
    weight = matrix(seed, bits, outputs, inputs, groups, has_zeros=has_zeros)
    made = low_bit_weight(weight, None)
    wanted = weight.dequantised()
    for output in {0, outputs // 2, outputs - 1}:
        found = [element(made, output, column) for column in range(inputs)]
        torch.testing.assert_close(torch.tensor(found), wanted[output])
    assert torch.equal(made.matrix().dequantised(), wanted)


@pytest.mark.parametrize("bits", [4, 8])
def test_minimums_are_zero_points_of_the_matrix(bits):
    torch.manual_seed(bits)
    made = empty_weight(bits, 70, 96, 3, torch.float16, has_minimums=True)
    assert made is not None
    made.blocks.random_(0, 256)
    for each in (made.scales, made.minimums):
        each.copy_(torch.randn(each.shape))
    made.scales[0, 0, :2] = 0.0  # numbers of such a group are its minimum
    made.minimums[0, 0, 1] = 0.0
    numbers = made.matrix().dequantised()
    for output in (0, 1, 69):
        found = torch.tensor([element(made, output, column) for column in range(96)])
        torch.testing.assert_close(numbers[output], found, rtol=1e-4, atol=1e-4)
    first, second = made.rows(0, 64), made.rows(64, 70)
    again = LowBitWeight.side_by_side([first, second])
    assert torch.equal(again.matrix().dequantised(), numbers)
    assert LowBitWeight.side_by_side([first, dataclasses.replace(second, minimums=None)]) is None
    assert made.num_bytes == made.blocks.nbytes + 2 * made.scales.nbytes


def test_columns_of_a_group_are_put_side_by_side():
    weight = matrix(1, 4, 5, 96, 3, has_zeros=True)
    order = torch.arange(96) % 3
    weight = dataclasses.replace(weight, group_of=order)
    made = low_bit_weight(weight, None)
    wanted = weight.dequantised()[2, made.order]
    found = [element(made, 2, column) for column in range(96)]
    torch.testing.assert_close(torch.tensor(found), wanted)
    assert torch.equal(made.matrix().dequantised(), weight.dequantised())


def test_scales_are_halves_only_where_these_are_exact():
    weight = matrix(1, 8, 5, 8)
    assert low_bit_weight(weight, None).scales.dtype == torch.float32
    weight = dataclasses.replace(weight, scales=weight.scales.bfloat16().float())
    assert low_bit_weight(weight, None).scales.dtype == torch.bfloat16


def test_values_of_other_widths_are_kept_in_the_next_larger_one():
    weight = matrix(2, 6, 3, 10)
    made = low_bit_weight(weight, None)
    assert made.bits == 8
    assert torch.equal(made.matrix().dequantised(), weight.dequantised())


@pytest.mark.parametrize(
    ("inputs", "groups", "order"),
    [(40, 2, None), (72, 3, None), (64, 2, [0] * 40 + [1] * 24), ((1 << 16) + 32, 1, None)],
)
def test_groups_and_sizes_that_kernels_do_not_know_are_left(inputs, groups, order):
    weight = matrix(3, 8, 2, inputs, groups)
    if order is not None:
        weight = dataclasses.replace(weight, group_of=torch.tensor(order))
    assert low_bit_weight(weight, None) is None
