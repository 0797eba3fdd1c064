"""The quantisation `int4`: matrices of 4 bits made at load, a scale per 32 inputs. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from tenonry_quantisations.layers import layer_for
from tenonry_quantisations.linear8 import refusal8
from tenonry_quantisations.rounding import rounded
from tenonry_quantisations.rounding4 import GROUP, rounded4
from tenonry_torch_base.quantisations import Quantisation

if TYPE_CHECKING:
    import torch

    from tenonry_torch_base.quantisations import QuantisedLinear, QuantisedWeight


class Int4(Quantisation):
    """Quantises any model from its floats. Matrices whose inputs are no multiple of 32 get 8 bits."""

    name = "int4"
    tolerance: ClassVar[float] = 0.4  # random weights lose most: 0.27 in 28 layers

    @classmethod
    def refusal(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        return refusal8(device, dtype)

    def quantise(self, weight: torch.Tensor) -> QuantisedWeight:
        return rounded(weight) if weight.shape[1] % GROUP else rounded4(weight)

    def linear(
        self, weight: QuantisedWeight, bias: torch.Tensor | None, dtype: torch.dtype
    ) -> QuantisedLinear | None:
        return layer_for(weight, bias, dtype)
