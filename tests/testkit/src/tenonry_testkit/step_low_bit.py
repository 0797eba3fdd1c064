"""Part of the conformance suite for quantised weights: linear layers, whole layers. Test process."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tenonry_testkit.step_layers import layer_formula
from tenonry_testkit.step_parts import attention_parts, layer_parts, paged_keys
from tenonry_testkit.step_suite import EXAMPLES, SEEDS, KernelSuite
from tenonry_torch_base.kernel_parts import LowBitParts, LowBitRowsParts
from tenonry_torch_base.low_bit import LowBitWeight, low_bit_weight
from tenonry_torch_base.quantisations import QuantisedWeight

DTYPES = (torch.float32, torch.bfloat16)
WIDTH = 16  # of groups, or a multiple
LARGEST = 127
ROUNDING = {8: 0.03, 16: 4e-4}  # input bits → relative error (L2) attributed to rounding of inputs
HALF = 2**-9  # the same for results in bfloat16


def random_matrix(
    bits: int,
    outputs: int,
    inputs: int,
    groups: int = 1,
    *,
    has_zeros: bool = False,
    has_half_scales: bool = False,
) -> QuantisedWeight:
    """Matrix with the whole range of values, and scales of very different sizes."""
    middle = 1 << (bits - 1)
    scales = torch.rand(outputs, groups) * 10 ** torch.randint(-2, 2, (outputs, groups))
    zeros = torch.randint(-middle, middle + 1, (outputs, groups)).float()
    if not has_half_scales:
        zeros += torch.rand(outputs, groups)
    return QuantisedWeight(
        bits=bits,
        values=torch.randint(-middle, middle, (outputs, inputs)).to(torch.int8),
        scales=scales.bfloat16().float() if has_half_scales else scales,
        zeros=zeros if has_zeros else None,
    )


def exact_rows(count: int, inputs: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows exactly representable with 8 bits per group, each with its own scale."""
    whole = torch.randint(-LARGEST, LARGEST + 1, (count, inputs))
    whole[:, ::WIDTH] = LARGEST
    return (whole * 2.0 ** torch.randint(-6, 6, (count, 1))).to(dtype)


def known(weight: QuantisedWeight, bias: torch.Tensor | None = None) -> LowBitWeight:
    """Return the weight in kernel layout."""
    found = low_bit_weight(weight, bias)
    assert found is not None
    return found


def with_minimums(weight: LowBitWeight, dtype: torch.dtype) -> tuple[LowBitWeight, torch.Tensor]:
    """Return the values with scales and minimums of a data type, and the numbers in float64."""
    scales, minimums = (
        (torch.randn(weight.scales.shape) * 10.0 ** torch.randint(-7, 1, weight.scales.shape)).to(
            dtype
        )
        for _ in range(2)
    )
    made = dataclasses.replace(weight, scales=scales, zeros=None, minimums=minimums)
    plain = dataclasses.replace(
        weight, scales=torch.ones_like(scales), zeros=torch.zeros_like(scales)
    )
    stored = plain.matrix().dequantised(torch.float64)
    each_input = [
        each.transpose(1, 2).flatten(0, 1)[: weight.outputs].double()
        .repeat_interleave(weight.inputs // weight.num_groups, 1)
        for each in (scales, minimums)
    ]  # fmt: skip
    return made, stored * each_input[0] + each_input[1]


class LowBitSuite(KernelSuite):
    """Kernels for quantised weights, compared with their formulas."""

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("bits", [4, 8])
    @EXAMPLES
    @given(
        SEEDS,
        st.integers(1, 20),
        st.integers(1, 300),
        st.integers(1, 200),
        st.integers(1, 6),
        st.booleans(),
        st.booleans(),
        st.booleans(),
    )
    def test_low_bit_linear_equals_its_formula(
        self,
        bits: int,
        dtype: torch.dtype,
        seed: int,
        count: int,
        inputs: int,
        outputs: int,
        groups: int,
        has_zeros: bool,
        has_bias: bool,
        has_other: bool,
    ):
        torch.manual_seed(seed)
        if groups > 1:
            inputs = groups * WIDTH * (1 + inputs % 3)
        weight = random_matrix(
            bits, outputs, inputs, groups, has_zeros=has_zeros, has_half_scales=has_bias
        )
        bias = torch.randn(outputs).to(dtype) if has_bias else None
        kernel = self.offered(LowBitParts(known(weight, bias)))
        x = exact_rows(count, inputs, dtype)
        other = torch.randn(count, outputs).to(dtype) if has_other else None
        kept = x.clone()
        got = kernel(x, other)
        wanted = x.double() @ weight.dequantised(torch.float64).t()
        # Sums are in float32: their error is of the size of the summands.
        size = x.double().abs() @ weight.dequantised(torch.float64).abs().t()
        for each in (bias, other):
            wanted = wanted if each is None else wanted + each.double()
        rounding = 1e-5 * size + (2**-7 if dtype == torch.bfloat16 else 1e-5) * wanted.abs()
        assert got.dtype == dtype
        assert got.shape == wanted.shape
        assert ((got.double() - wanted).abs() <= rounding + 1e-6).all()
        assert torch.equal(x, kept)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("bits", [4, 8])
    @EXAMPLES
    @given(SEEDS, st.integers(1, 5), st.integers(1, 200), st.booleans(), st.booleans())
    def test_low_bit_rows_equal_matrix_rows(
        self,
        bits: int,
        dtype: torch.dtype,
        seed: int,
        groups: int,
        outputs: int,
        has_zeros: bool,
        has_half_scales: bool,
    ):
        torch.manual_seed(seed)
        weight = random_matrix(
            bits,
            outputs,
            groups * WIDTH,
            groups,
            has_zeros=has_zeros,
            has_half_scales=has_half_scales,
        )
        rows = self.offered(LowBitRowsParts(known(weight), dtype))
        wanted = weight.dequantised()
        size = wanted.abs().amax() + weight.scales.max() * (1 << bits)
        allowed = size * (2**-8 if dtype == torch.bfloat16 else 1e-6)
        ids = torch.randint(0, outputs, (seed % 40,))
        assert rows(None).dtype == dtype
        assert ((rows(None).float() - wanted).abs() <= allowed).all()
        assert torch.equal(rows(ids), rows(None)[ids])
        assert rows(torch.tensor([outputs, -1, 1 << 40])).isnan().all()

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("input_bits", [8, 16])
    @pytest.mark.parametrize("bits", [4, 8])
    @pytest.mark.parametrize("count", [1, 3, 40])
    def test_low_bit_linear_rounds_inputs(
        self, bits: int, count: int, input_bits: int, dtype: torch.dtype
    ):
        """One input is much larger than the others, as in the most sensitive models."""
        torch.manual_seed(count)
        weight = random_matrix(bits, 500, 512, 8, has_zeros=count == 3)
        made = dataclasses.replace(known(weight), input_bits=input_bits)
        kernel = self.offered(LowBitParts(made))
        x = torch.randn(count, 512)
        x[:, 7] *= 10
        x = x.to(dtype)
        wanted = x.float() @ weight.dequantised().t()
        error = (kernel(x).float() - wanted).norm() / wanted.norm()
        allowed = ROUNDING[input_bits] + (HALF if dtype == torch.bfloat16 else 0)
        assert float(error) < allowed

    @pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
    @pytest.mark.parametrize("bits", [4, 8])
    @pytest.mark.parametrize("count", [1, 40])
    def test_low_bit_linear_adds_minimums(self, bits: int, count: int, dtype: torch.dtype):
        """`dtype`: of scales and minimums, which are exact in any of them; small and negative ones are among them."""
        torch.manual_seed(count)
        weight, numbers = with_minimums(known(random_matrix(bits, 130, 96, 3)), dtype)
        x = exact_rows(count, 96, torch.float32)
        rows = self.offered(LowBitRowsParts(weight, torch.float32))(None)
        torch.testing.assert_close(rows.double(), numbers, rtol=1e-5, atol=1e-5)
        wanted = x.double() @ numbers.t()
        size = x.double().abs() @ numbers.abs().t()
        for input_bits in (8, 16):
            kernel = self.offered(LowBitParts(dataclasses.replace(weight, input_bits=input_bits)))
            assert ((kernel(x).double() - wanted).abs() <= 1e-5 * size + 1e-6).all()

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_low_bit_linear_accepts_zero_rows(self, dtype: torch.dtype):
        kernel = self.offered(LowBitParts(known(random_matrix(4, 70, 128, 4))))
        assert kernel(torch.empty(0, 128, dtype=dtype)).shape == (0, 70)

    def test_low_bit_linear_permutes_columns(self):
        torch.manual_seed(4)
        weight = random_matrix(4, 70, 128, 4, has_zeros=True)
        order = torch.arange(4).repeat(32)
        weight = dataclasses.replace(weight, group_of=order)
        kernel = self.offered(LowBitParts(known(weight)))
        x = torch.empty(3, 128)
        x[:, order.argsort(stable=True)] = exact_rows(3, 128, torch.float32)
        wanted = x @ weight.dequantised().t()
        torch.testing.assert_close(kernel(x), wanted, rtol=1e-4, atol=1e-3 * wanted.abs().max())

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
    def test_low_bit_linear_confines_nan_to_its_row(self, dtype: torch.dtype, bad: float):
        torch.manual_seed(2)
        kernel = self.offered(LowBitParts(known(random_matrix(8, 100, 70))))
        x = torch.randn(9, 70).to(dtype)
        others = [0, 1, 2, 3, 5, 6, 7, 8]
        wanted = kernel(x)[others]
        x[4, 5] = bad
        got = kernel(x)
        assert not got[4].isfinite().any()
        assert torch.equal(got[others], wanted)

    @pytest.mark.parametrize("input_bits", [8, 16])
    def test_low_bit_linear_is_independent_of_other_rows(self, input_bits: int):
        torch.manual_seed(3)
        weight = dataclasses.replace(known(random_matrix(4, 130, 96, 3)), input_bits=input_bits)
        kernel = self.offered(LowBitParts(weight))
        x = torch.randn(20, 96) * 10 ** torch.randint(-2, 3, (20, 96))
        every = kernel(x)
        for row in range(20):
            assert torch.equal(kernel(x[row : row + 1])[0], every[row])

    @pytest.mark.parametrize("bits", [4, 8])
    @pytest.mark.parametrize("count", [1, 2, 9])
    def test_low_bit_layer_equals_its_formula(self, bits: int, count: int):
        torch.manual_seed(bits + count)
        attention = attention_parts(2, 2, 32, is_gated=False, is_normalised=True)
        parts, _ = layer_parts(attention, 128, 192, has_bias=True)
        weights = {}
        for name in ("projection", "out", "gate_up", "down"):
            own = getattr(parts, name)
            matrix = random_matrix(bits, own.outputs, own.inputs, own.inputs // WIDTH)
            size = matrix.dequantised().std() * own.inputs**0.5
            matrix = dataclasses.replace(matrix, scales=matrix.scales / size)
            weights[name] = matrix.dequantised(torch.float64)
            parts = dataclasses.replace(parts, **{name: known(matrix, own.bias)})
        kernel = self.offered(parts)
        keys = paged_keys(attention, count, 20, 4)
        exact = keys._replace(blocks=keys.blocks.clone())
        hidden = torch.randn(count, 128).bfloat16()
        angles = torch.rand(count, 1, 32) * 6
        cos = angles.cos().bfloat16()
        sin = angles.sin().bfloat16()
        made = kernel(hidden, cos, sin, keys)
        wanted = layer_formula(parts, weights, hidden, cos.double(), sin.double(), exact)
        assert float((made.double() - wanted).norm() / wanted.norm()) < ROUNDING[8]
