"""The quantisation `int8`: matrices of 8 bits made at load, a scale per output; inputs in 8 bits, a scale per row.
Worker process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from tenonry_quantisations.linear8 import linear8, refusal8
from tenonry_quantisations.rounding import rounded
from tenonry_torch_base.quantisations import Quantisation

if TYPE_CHECKING:
    import torch

    from tenonry_torch_base.quantisations import QuantisedLinear, QuantisedWeight


class Int8(Quantisation):
    """Quantises any model from its floats."""

    name = "int8"
    tolerance: ClassVar[float] = 0.1

    @classmethod
    def refusal(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        return refusal8(device, dtype)

    def quantise(self, weight: torch.Tensor) -> QuantisedWeight:
        return rounded(weight)

    def linear(
        self, weight: QuantisedWeight, bias: torch.Tensor | None, dtype: torch.dtype
    ) -> QuantisedLinear | None:
        return linear8(weight, bias, dtype)
