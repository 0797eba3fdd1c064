"""The conformance suite of quantisations: matrices as defined by the format, and layers as products with them.

from tenonry_testkit.quantisation import QuantisationContract, StoredExample

class TestMine(QuantisationContract):
    quantisation = "my_package:Mine"

    def stored(self):  # only of one that reads checkpoints
        return StoredExample(config, tensors, floats)

Needs torch: install `tenonry-testkit[torch]`. Test process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tenonry.errors import ModelError
from tenonry.plugin.manager import resolve_point
from tenonry_hf_hub import StoredTensor
from tenonry_testkit.search import few_examples
from tenonry_torch_base.points import QUANTISATIONS
from tenonry_torch_base.quantisations import Quantisation, QuantisedWeight

EXAMPLES = few_examples(12)
DTYPES = (torch.float32, torch.bfloat16)
CPU = torch.device("cpu")
NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.float8_e4m3fn: "F8_E4M3",
}
MODULE = "model.layers.0.mlp.up_proj"
BIAS = 20.0  # as large as products
ROUNDING = 0.02  # error of bfloat16 arithmetic and scales


class StoredExample(NamedTuple):
    """Stored form of one matrix in a checkpoint: its `quantization_config`, the tensors by ending, and the dequantised
    floats [out, in], computed independently. `needed`: required endings.
    """

    config: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    floats: torch.Tensor
    needed: tuple[str, ...]


class QuantisationContract:
    """Subclass and name a class, or a substitute for one."""

    quantisation: ClassVar[Any]

    def stored(self) -> StoredExample | None:
        """Return a matrix in checkpoint format; None without checkpoint support."""
        return None

    def found(self) -> type[Quantisation]:
        if not isinstance(self.quantisation, str):
            return self.quantisation
        return resolve_point(QUANTISATIONS, self.quantisation)[0]

    def made(self) -> Quantisation:
        """Build it for the checkpoint of the example, or for quantisation at load."""
        example = self.stored()
        return self.found()(None if example is None else example.config)

    def example(self) -> StoredExample:
        found = self.stored()
        if found is None:
            pytest.skip("it reads no checkpoints")
        return found

    def computing(self, dtype: torch.dtype) -> Quantisation:
        reason = self.found().refusal(CPU, dtype)
        if reason is not None:
            pytest.skip(reason)
        return self.made()

    def weight(self, seed: int, rows: int = 32, columns: int = 64) -> QuantisedWeight:
        """Matrix of the example, or one of random floats."""
        example = self.stored()
        if example is not None:
            return self.made().weight(MODULE, example.tensors)
        torch.manual_seed(seed)
        return self.made().quantise(torch.randn(rows, columns) * torch.rand(rows, 1))

    # ------------------------------------------------------------------ its own description
    def test_is_described(self):
        found = self.found()
        assert found.name
        assert found.interface_version == 1
        assert 0 < found.tolerance <= 0.5
        for dtype in (*DTYPES, torch.float16):
            reason = found.refusal(CPU, dtype)
            assert reason is None or reason

    def test_reads_no_other_format(self):
        assert not self.found().reads({"quant_method": "of-nobody", "bits": 4})
        assert not self.found().reads({})

    def test_reads_its_own_checkpoints(self):
        assert self.found().reads(self.example().config)

    # ------------------------------------------------------------------ matrices
    def test_a_stored_matrix_has_the_shape_and_the_numbers_of_the_format(self):
        example = self.example()
        made = self.made()
        assert tuple(made.shape(MODULE, headers(example.tensors))) == tuple(example.floats.shape)
        weight = made.weight(MODULE, example.tensors)
        assert weight.shape == tuple(example.floats.shape)
        torch.testing.assert_close(weight.dequantised(), example.floats, rtol=1e-3, atol=1e-5)

    def test_a_part_that_is_missing_is_named(self):
        example = self.example()
        assert example.needed
        for ending in example.needed:
            rest = {key: tensor for key, tensor in example.tensors.items() if key != ending}
            with pytest.raises(ModelError, match=f"{MODULE}.{ending}"):
                self.made().shape(MODULE, headers(rest))

    def test_a_part_of_another_shape_or_type_is_named(self):
        example = self.example()
        for ending in example.needed:
            tensor = example.tensors[ending]
            longer = torch.cat([tensor, tensor[:1]])
            for wrong in (longer, tensor.to(torch.float64)):
                changed = headers(example.tensors | {ending: wrong})
                with pytest.raises(ModelError, match=MODULE):
                    self.made().shape(MODULE, changed)

    @EXAMPLES
    @given(st.integers(0, 2**31), st.integers(1, 40), st.integers(1, 90))
    def test_floats_are_quantised_within_the_tolerance(self, seed: int, rows: int, columns: int):
        if self.stored() is not None:
            pytest.skip("it reads checkpoints")
        torch.manual_seed(seed)
        floats = torch.randn(rows, columns)
        floats[0] = 0
        before = floats.clone()
        weight = self.made().quantise(floats)
        assert torch.equal(floats, before)
        assert weight.shape == (rows, columns)
        assert weight.values.dtype == torch.int8
        assert weight.scales.dtype == torch.float32
        near(weight.dequantised(), floats, self.found().tolerance)

    # ------------------------------------------------------------------ layers
    @pytest.mark.parametrize("dtype", DTYPES)
    @EXAMPLES
    @given(st.integers(0, 2**31), st.sampled_from([0, 1, 2, 3, 4, 9, 65]), st.booleans())
    def test_a_layer_is_the_product_with_its_matrix(
        self, dtype: torch.dtype, seed: int, count: int, has_bias: bool
    ):
        made = self.computing(dtype)
        weight = self.weight(seed)
        rows, columns = weight.shape
        bias = (torch.randn(rows) * BIAS).to(dtype) if has_bias else None
        layer = made.linear(weight, bias, dtype)
        if layer is None:
            pytest.skip("left to floats")
        x = (torch.randn(count, columns) * 3).to(dtype)
        other = torch.randn(count, rows).to(dtype)
        given_x = x.clone()
        given_other = other.clone()
        got = layer(x)
        wanted = x.float() @ weight.dequantised().T
        if bias is not None:
            wanted += bias.float()
        assert got.dtype == dtype
        near(got, wanted, made.tolerance + ROUNDING)
        near(layer.add(x, other), wanted + other.float(), made.tolerance + ROUNDING)
        assert torch.equal(x, given_x)
        assert torch.equal(other, given_other)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("count", [2, 3, 9])
    def test_a_row_depends_on_no_other(self, dtype: torch.dtype, count: int):
        layer = self.computing(dtype).linear(self.weight(3), None, dtype)
        if layer is None:
            pytest.skip("left to floats")
        columns = self.weight(3).shape[1]
        x = torch.randn(count, columns).to(dtype)
        alone = layer(x)[0]
        for others in (x[1:] * 1000, torch.full_like(x[1:], torch.nan), torch.zeros_like(x[1:])):
            assert torch.equal(layer(torch.cat([x[:1], others]))[0], alone)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_a_row_of_zeros_gives_the_bias(self, dtype: torch.dtype):
        weight = self.weight(4)
        bias = torch.randn(weight.shape[0]).to(dtype)
        layer = self.computing(dtype).linear(weight, bias, dtype)
        if layer is None:
            pytest.skip("left to floats")
        for count in (1, 5):
            got = layer(torch.zeros(count, weight.shape[1], dtype=dtype))
            torch.testing.assert_close(got, bias.expand(count, -1), rtol=1e-2, atol=1e-2)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("count", [1, 4])
    def test_what_is_not_a_number_does_not_become_one(self, dtype: torch.dtype, count: int):
        weight = self.weight(5)
        layer = self.computing(dtype).linear(weight, None, dtype)
        if layer is None:
            pytest.skip("left to floats")
        x = torch.randn(count, weight.shape[1]).to(dtype)
        x[0, 0] = torch.nan
        assert not torch.isfinite(layer(x)[0]).any()


def headers(tensors: dict[str, torch.Tensor]) -> dict[str, StoredTensor]:
    """Return the file headers of these tensors."""
    file = Path("model.safetensors")
    return {
        ending: StoredTensor(file, NAMES[tensor.dtype], tuple(tensor.shape), 0, tensor.nbytes)
        for ending, tensor in tensors.items()
    }


def near(got: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> None:
    """Relative error (L2) over all."""
    assert got.shape == wanted.shape
    error = (got.float() - wanted.float()).norm()
    assert float(error) <= tolerance * float(wanted.float().norm()) + 1e-6
