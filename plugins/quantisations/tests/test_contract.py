from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.entrypoints.convert import AutoAWQConverter
from compressed_tensors.quantization import QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from quantised_models import GROUP, split

from tenonry_quantisations.awq import Awq
from tenonry_quantisations.compressed_tensors import CompressedTensors
from tenonry_quantisations.gptq import Gptq
from tenonry_testkit.quantisation import QuantisationContract, StoredExample

ROWS = 32
COLUMNS = 96


def floats():
    torch.manual_seed(7)
    return torch.randn(ROWS, COLUMNS)


class TestInt8(QuantisationContract):
    quantisation = "int8"


class TestInt4(QuantisationContract):
    quantisation = "int4"


class OfTheLibrary(QuantisationContract):
    """The library's stored tensors of a matrix, and its dequantised result."""

    quantisation = "compressed-tensors"
    weights: ClassVar[dict]
    kind: str

    def stored(self):
        weights = {"type": "int", "symmetric": True, **self.weights}
        scheme = QuantizationScheme(targets=["Linear"], weights=weights)
        matrix = floats()
        groups = COLUMNS // weights["group_size"] if "group_size" in weights else 1
        parts = matrix.view(ROWS, groups, -1)
        low, high = parts.amin(-1), parts.amax(-1)
        if weights["strategy"] == "tensor":
            low, high = low.min()[None], high.max()[None]
        scale, zero = calculate_qparams(low, high, scheme.weights)
        compressor = BaseCompressor.get_value_from_registry(self.kind)
        given = {"weight": matrix, "weight_scale": scale, "weight_zero_point": zero}
        tensors = compressor.compress(given, scheme)
        made = compressor.decompress(tensors, scheme)["weight"]
        config = {
            "quant_method": "compressed-tensors",
            "format": self.kind,
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        }
        needed = tuple(name for name in tensors if name not in {"weight", "weight_packed"})
        return StoredExample(config, tensors, made, needed)


class TestChannels(OfTheLibrary):
    kind = "int-quantized"
    weights: ClassVar = {"num_bits": 8, "strategy": "channel"}


class TestOneScale(OfTheLibrary):
    kind = "int-quantized"
    weights: ClassVar = {"num_bits": 8, "strategy": "tensor"}


@pytest.mark.nightly
class TestGroupsOfBytes(OfTheLibrary):
    kind = "pack-quantized"
    weights: ClassVar = {"num_bits": 8, "strategy": "group", "group_size": GROUP}


class TestGroups(OfTheLibrary):
    kind = "pack-quantized"
    weights: ClassVar = {"num_bits": 4, "strategy": "group", "group_size": GROUP}


class TestGroupsWithZeros(OfTheLibrary):
    kind = "pack-quantized"
    weights: ClassVar = {
        "num_bits": 4,
        "strategy": "group",
        "group_size": GROUP,
        "symmetric": False,
    }


@pytest.mark.nightly
class TestPackedChannels(OfTheLibrary):
    kind = "pack-quantized"
    weights: ClassVar = {"num_bits": 4, "strategy": "channel"}


class OfFloats(OfTheLibrary):
    """Floats of 8 bits: the library's, too."""

    quantisation = "fp8"
    kind = "float-quantized"

    def stored(self):
        found = super().stored()
        return found._replace(needed=("weight_scale",))


class TestFloatsByChannel(OfFloats):
    weights: ClassVar = {"type": "float", "num_bits": 8, "strategy": "channel"}


@pytest.mark.nightly
class TestFloatsWithOneScale(OfFloats):
    weights: ClassVar = {"type": "float", "num_bits": 8, "strategy": "tensor"}


class TestFp8(QuantisationContract):
    """As DeepSeek writes it, with blocks that the matrix does not fill."""

    quantisation = "fp8"
    config: ClassVar = {"quant_method": "fp8", "weight_block_size": [20, 36]}
    scale: ClassVar = "weight_scale_inv"
    scales: ClassVar = torch.rand(2, 3, generator=torch.Generator().manual_seed(3)) + 0.5

    def stored(self):
        values = floats().to(torch.float8_e4m3fn)
        made = values.float()
        height, width = self.config.get("weight_block_size", (ROWS, COLUMNS))
        rows, columns = torch.arange(ROWS) // height, torch.arange(COLUMNS) // width
        made *= self.scales[rows][:, columns] if self.scales.dim() == 2 else self.scales
        parts = {"weight": values, self.scale: self.scales}
        return StoredExample(self.config, parts, made, (self.scale,))

    def test_a_part_of_another_shape_or_type_is_named(self):
        if self.scales.dim():
            super().test_a_part_of_another_shape_or_type_is_named()


@pytest.mark.nightly
class TestFp8WithOneScale(TestFp8):
    config: ClassVar = {"quant_method": "fp8", "activation_scheme": "static"}
    scale = "weight_scale"
    scales = torch.tensor(0.75)


class TestFp8InWholeBlocks(TestFp8):
    config: ClassVar = {"quant_method": "fp8", "weight_block_size": [16, 32]}


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP}


class TestGptq(QuantisationContract):
    quantisation = "gptq"
    config = GPTQ

    def stored(self):
        parts, made = split(floats(), self.config, "gptq")
        return StoredExample(self.config, parts, made, ("qweight", "qzeros", "scales"))


@pytest.mark.nightly
class TestGptqOfBytes(TestGptq):
    config = GPTQ | {"bits": 8}


class TestGptqInOrderOfActivations(TestGptq):
    config = GPTQ | {"desc_act": True}


class TestAwq(QuantisationContract):
    quantisation = "awq"
    config: ClassVar = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True}

    def stored(self):
        parts, made = split(floats(), self.config, "awq")
        return StoredExample(self.config, parts, made, ("qweight", "qzeros", "scales"))


def test_awq_is_read_as_the_library_converts_it():
    """compressed-tensors converts checkpoints of AutoAWQ by code of its own."""
    example = TestAwq().stored()
    tensors = {f"model.up.{ending}": tensor for ending, tensor in example.tensors.items()}
    converter = AutoAWQConverter(bits=4, group_size=GROUP, zero_point=True, version="gemm")
    converted = {
        name.rpartition(".")[2]: tensor for name, tensor in converter.process(tensors).items()
    }
    config = {
        "config_groups": {
            "g": {
                "weights": {
                    "num_bits": 4,
                    "type": "int",
                    "symmetric": False,
                    "strategy": "group",
                    "group_size": GROUP,
                }
            }
        }
    }
    theirs = CompressedTensors(config).weight("up", converted).dequantised()
    ours = Awq(example.config).weight("up", example.tensors).dequantised()
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("bits", [4, 8])
def test_symmetric_checkpoints_have_no_zeros(bits):
    """Zero points in the middle of the range need no arithmetic."""
    config = GPTQ | {"bits": bits, "checkpoint_format": "gptq_v2"}
    parts, _ = split(floats(), config, "gptq")
    middle = 1 << (bits - 1)
    word = sum(middle << (bits * place) for place in range(32 // bits))
    parts["qzeros"].fill_(word - (1 << 32))
    assert Gptq(config).weight("up", parts).zeros is None


@pytest.mark.parametrize("name", ["format", "checkpoint_format"])
@pytest.mark.parametrize("bits", [4, 8])
def test_zero_points_of_both_gptq_formats_are_those_that_the_library_reads(bits, name):
    """GPTQModel subtracts 1 from all fields of a word in one operation, so that a zero point of 0 borrows from the next
    one, and adds it back in the same way when it reads the first format.
    """
    weight = floats()
    weight[::3].abs_()  # zero points of 0
    second = GPTQ | {"bits": bits, "checkpoint_format": "gptq_v2"}
    parts, wanted = split(weight, second, "gptq")
    step = 0x11111111 if bits == 4 else 0x01010101
    first = parts | {"qzeros": parts["qzeros"] - step}
    for config, stored in (
        (GPTQ | {"bits": bits, name: "gptq_v2"}, parts),
        (GPTQ | {"bits": bits, name: "gptq"}, first),
        (GPTQ | {"bits": bits, name: "GPTQ"}, first),
        (GPTQ | {"bits": bits}, first),
    ):
        made = Gptq(config).weight("up", stored).dequantised()
        torch.testing.assert_close(made, wanted, rtol=0, atol=0)
