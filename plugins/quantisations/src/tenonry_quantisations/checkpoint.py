"""Common base of quantisations that read checkpoints. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from tenonry_quantisations.layers import layer_for
from tenonry_quantisations.linear8 import refusal8
from tenonry_torch_base.quantisations import Quantisation

if TYPE_CHECKING:
    import torch

    from tenonry_torch_base.quantisations import QuantisedLinear, QuantisedWeight


class CheckpointQuantisation(Quantisation):
    """Layers are those of `layer_for`, which may round again and therefore need a tolerance."""

    tolerance: ClassVar[float] = 0.1

    @classmethod
    def refusal(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        return refusal8(device, dtype)

    def linear(
        self, weight: QuantisedWeight, bias: torch.Tensor | None, dtype: torch.dtype
    ) -> QuantisedLinear | None:
        return layer_for(weight, bias, dtype)
