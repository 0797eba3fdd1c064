"""The quantisation `fp8`: checkpoints in floats of 8 bits, as compressed-tensors, DeepSeek and ModelOpt write them.

Worker process.

https://arxiv.org/abs/2209.05433 has the numbers (E4M3), https://arxiv.org/abs/2412.19437 section 3.3 the scales of
square blocks.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch

from tenonry.errors import ModelError
from tenonry_quantisations.checkpoint import CheckpointQuantisation
from tenonry_quantisations.headers import FLOATS, REMEDY, Parts, entry
from tenonry_quantisations.layers import layer_for
from tenonry_quantisations.rounding import rounded
from tenonry_torch_base.quantisations import QuantisedWeight

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tenonry_hf_hub import StoredTensor
    from tenonry_torch_base.quantisations import QuantisedLinear

COMPRESSED = "compressed-tensors"
MODELOPT = "modelopt"
FORMATS = ("float-quantized", "naive-quantized")
STRATEGIES = ("block", "channel", "tensor")
E4M3 = ("F8_E4M3",)
SCALES = ("weight_scale_inv", "weight_scale")
OTHERS = "take a model in fp8 by tensor, channel or block, or with its floats"


class Fp8(CheckpointQuantisation):
    """Tensors of a matrix [out, in]: `weight` float8_e4m3fn[out, in]; `weight_scale`, in some checkpoints called
    `weight_scale_inv`, by which it is multiplied: one number, [out] or [out, 1], or [blocks of out, blocks of in].

    The floats are exact in float32. Layers round them once more, to 8 bits with a scale per output, as they round their
    inputs; settings for inputs are ignored.
    """

    name = "fp8"
    parts = ("weight", *SCALES)

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__(config)
        given = config or {}
        self.strategy = "tensor"
        block = given.get("weight_block_size")
        if given.get("quant_method") == self.name:
            entry(given, "fmt", ("e4m3", "float8_e4m3fn"), "e4m3", self.name)
            entry(given, "scale_fmt", ("float", None), None, self.name)
        elif _is_modelopt(given):
            self.strategy = "tensor"
        else:
            entry(given, "format", FORMATS, FORMATS[0], COMPRESSED)
            scheme = _one_scheme(given)
            self.strategy = entry(scheme, "strategy", STRATEGIES, "tensor", COMPRESSED)
            block = scheme.get("block_structure")
        if block is not None:
            self.strategy = "block"
        self.block = _block(block) if self.strategy == "block" else (1, 1)

    @classmethod
    def reads(cls, config: Mapping[str, Any]) -> bool:
        if config.get("quant_method") == cls.name or _is_modelopt(config):
            return True
        weights = list(_weights_of(config))
        return bool(weights) and all(_is_float8(each) for each in weights)

    def shape(self, name: str, stored: Mapping[str, StoredTensor]) -> tuple[int, int]:
        parts = Parts(name, stored)
        rows, columns = parts.shape("weight", E4M3)
        ending = next((each for each in SCALES if parts.has(each)), self._usual)
        wanted: tuple[int, ...] = ()
        if self.strategy == "block":
            wanted = (-(-rows // self.block[0]), -(-columns // self.block[1]))
        elif parts.has(ending):
            # One number, or one per output; either may have a dimension more.
            given = stored[ending].shape
            alike = {"tensor": ((), (1,), (1, 1)), "channel": ((rows,), (rows, 1))}[self.strategy]
            wanted = given if given in alike else alike[-1]
        parts.expect(ending, FLOATS, wanted)
        return rows, columns

    @property
    def _usual(self) -> str:
        is_own = (self.config or {}).get("quant_method") == self.name
        return SCALES[0] if is_own else SCALES[1]

    def weight(self, name: str, tensors: Mapping[str, torch.Tensor]) -> QuantisedWeight:
        values = tensors["weight"]
        rows, columns = values.shape
        ending = next(each for each in SCALES if each in tensors)
        scales = tensors[ending].float()
        if not torch.isfinite(scales).all():
            raise ModelError(f"{name}.{ending} holds numbers that are not finite; {REMEDY}")
        group_of = None
        if self.strategy == "block":
            height, width = self.block
            scales = scales.repeat_interleave(height, 0)[:rows]
            if columns % width:
                group_of = torch.arange(columns) // width
        else:
            scales = scales.reshape(-1, 1).expand(rows, 1)
        return QuantisedWeight(bits=8, values=values, scales=scales.contiguous(), group_of=group_of)

    def linear(
        self, weight: QuantisedWeight, bias: torch.Tensor | None, dtype: torch.dtype
    ) -> QuantisedLinear | None:
        floats = weight.dequantised()
        return layer_for(rounded(floats), bias, dtype)


def _is_modelopt(config: Mapping[str, Any]) -> bool:
    """Return True if ModelOpt wrote it, in floats of 8 bits with a scale per matrix."""
    return config.get("quant_method") == MODELOPT and config.get("quant_algo") == "FP8"


def _weights_of(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Settings for weights of each group of compressed-tensors."""
    groups = config.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict):
            yield weights


def _is_float8(weights: Mapping[str, Any]) -> bool:
    return weights.get("type") == "float" and weights.get("num_bits") == 8


def _one_scheme(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Raises ModelError where groups of layers have different ones."""
    found = list(_weights_of(config))
    for first, second in itertools.pairwise(found):
        for key in ("strategy", "block_structure"):
            if first.get(key) != second.get(key):
                raise ModelError(
                    f"quantization_config: config_groups of {COMPRESSED} have several kinds of weights, {key} "
                    f"{first.get(key)!r} and {second.get(key)!r}, and one is read; {OTHERS}"
                )
    return found[0]


def _block(found: Any) -> tuple[int, int]:
    """Rows and columns. Raises ModelError."""
    is_pair = isinstance(found, list | tuple) and len(found) == 2
    if not is_pair or not all(isinstance(each, int) and 0 < each < 1 << 20 for each in found):
        raise ModelError(
            f"quantization_config: blocks of {str(found)[:80]!r}: rows and columns, such as [128, 128]; {REMEDY}"
        )
    return int(found[0]), int(found[1])
