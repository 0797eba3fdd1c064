"""Quantisation `six-bits`: four weights in three bytes, made at load or read from a checkpoint. Worker process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.nn import functional

from tenonry.errors import ModelError
from tenonry_torch_base.quantisations import Quantisation, QuantisedLinear, QuantisedWeight

if TYPE_CHECKING:
    from tenonry_hf_hub import StoredTensor

LARGEST = 31
OFFSET = 32  # packed values are not negative


def pack(values: torch.Tensor) -> torch.Tensor:
    """Pack int8[out, in] between −32 and 31 into uint8[out, 3 · ⌈in / 4⌉]."""
    padded = functional.pad(values, (0, -values.shape[1] % 4))
    a, b, c, d = (padded + OFFSET).to(torch.uint8).unflatten(1, (-1, 4)).unbind(-1)
    return torch.stack((a | b << 6, b >> 2 | c << 4, c >> 4 | d << 2), -1).flatten(1)


def unpack(packed: torch.Tensor, columns: int) -> torch.Tensor:
    """Return the values int8[out, columns]."""
    x, y, z = packed.unflatten(1, (-1, 3)).unbind(-1)
    values = torch.stack((x & 63, x >> 6 | (y & 15) << 2, y >> 4 | (z & 3) << 4, z >> 2), -1)
    return values.flatten(1)[:, :columns].to(torch.int8) - OFFSET


class SixBitLinear(QuantisedLinear):
    """Holds packed values, and makes floats of them in each step."""

    def __init__(self, weight: QuantisedWeight, bias: torch.Tensor | None) -> None:
        self.packed_values = pack(weight.values)
        self.columns = weight.shape[1]
        self.scales = weight.scales.view(-1)
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        matrix = unpack(self.packed_values, self.columns).to(x.dtype)
        made = (x @ matrix.t()) * self.scales.to(x.dtype)
        return made if self.bias is None else made + self.bias


class SixBits(Quantisation):
    """Symmetric, with a scale per output, rounded to the nearest."""

    interface_version = 1
    name: ClassVar[str] = "six-bits"
    tolerance: ClassVar[float] = 0.2
    parts: ClassVar[tuple[str, ...]] = ("six_values", "six_scales")

    @classmethod
    def refusal(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        return None if device.type == "cpu" else "it was tested on the CPU only"

    def quantise(self, weight: torch.Tensor) -> QuantisedWeight:
        scales = weight.float().abs().amax(1, keepdim=True).clamp_min(1e-20) / LARGEST
        values = (weight.float() / scales).round().to(torch.int8)
        return QuantisedWeight(bits=6, values=values, scales=scales)

    @classmethod
    def reads(cls, config: Mapping[str, Any]) -> bool:
        return config.get("quant_method") == "six"

    def shape(self, name: str, stored: Mapping[str, StoredTensor]) -> tuple[int, int]:
        for part in self.parts:
            if part not in stored:
                raise ModelError(f"{name}.{part} is in no file; download the model again")
        values, scales = (stored[part] for part in self.parts)
        is_matrix = values.dtype == "I8" and len(values.shape) == 2
        if not is_matrix or scales.dtype != "F32" or scales.shape != (values.shape[0], 1):
            raise ModelError(f"{name}.six_values and {name}.six_scales do not fit each other")
        rows, columns = values.shape
        return rows, columns

    def weight(self, name: str, tensors: Mapping[str, torch.Tensor]) -> QuantisedWeight:
        values, scales = (tensors[part] for part in self.parts)
        if values.numel() and not -LARGEST <= int(values.min()) <= int(values.max()) <= LARGEST:
            raise ModelError(f"{name}.six_values has values beyond ±{LARGEST}")
        return QuantisedWeight(bits=6, values=values, scales=scales)

    def linear(
        self, weight: QuantisedWeight, bias: torch.Tensor | None, dtype: torch.dtype
    ) -> SixBitLinear:
        return SixBitLinear(weight, bias)
