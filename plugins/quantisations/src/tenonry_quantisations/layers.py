"""Linear layers over a quantised matrix, for any format. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenonry_quantisations.linear4 import linear4
from tenonry_quantisations.linear8 import FloatLinear, Linear8, linear8, multiplies_bytes
from tenonry_quantisations.rounding import rounded

if TYPE_CHECKING:
    import torch

    from tenonry_torch_base.quantisations import QuantisedLinear, QuantisedWeight


def layer_for(
    weight: QuantisedWeight, bias: torch.Tensor | None, dtype: torch.dtype
) -> QuantisedLinear:
    """4 bits stay so for few rows; whatever has not one scale per output is rounded to 8 bits that have.

    All are floats where torch does not multiply bytes.
    """
    if not multiplies_bytes(weight.values.device):
        return FloatLinear(weight, bias, dtype)
    if weight.bits == 4:
        made = linear4(weight, bias, dtype)
        if made is not None:
            return made
    found = linear8(weight, bias, dtype)
    return found or Linear8(rounded(weight.dequantised()), bias, dtype)
