"""Linear layers over matrices of 8 bits with a scale per output, on CPUs that multiply bytes. Worker process.

Each row of the input is rounded to 8 bits with a scale of its own. Products are summed exactly, in 32 bits, so a row's
result does not depend on the other rows.

Without VNNI, oneDNN sums pairs of products in 16 bits, which may overflow. There torch multiplies the dequantised
matrix, and only step kernels, which widen before they add, make quantised weights faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from tenonry_torch_base.quantisations import QuantisedLinear

if TYPE_CHECKING:
    from tenonry_torch_base.quantisations import QuantisedWeight

# torch has no public name for these; its own compiler calls them. `multiplies_bytes` checks that they exist.
_ONEDNN = torch.ops.onednn
TYPES = (torch.float32, torch.bfloat16)
LARGEST = 127
# Values of inputs are stored as value + ZERO, without sign: instructions multiply bytes without by bytes with a sign.
ZERO = 128
TINY = 1e-30


def refusal8(device: torch.device, dtype: torch.dtype) -> str | None:
    """Reason why there are no such layers here; None if there are."""
    if device.type == "cuda":  # with kernels of the attention backend's distribution
        return None
    if device.type != "cpu":
        return f"its layers compute on the CPU and on CUDA, not on {device.type}"
    if dtype not in TYPES:
        return f"its layers compute in float32 or bfloat16, not in {dtype}"
    return None


def multiplies_bytes(device: torch.device | None = None) -> bool:
    """Return True on a CPU if oneDNN is available, the processor has VNNI, and ATEN_CPU_CAPABILITY does not disable
    it.
    """
    if device is not None and device.type != "cpu":
        return False
    if not (torch.backends.mkldnn.is_available() and hasattr(_ONEDNN, "qlinear_pointwise")):
        return False
    has_vnni = torch.cpu._is_vnni_supported()  # noqa: SLF001 - it has no public name
    return has_vnni and torch.backends.cpu.get_cpu_capability().startswith("AVX512")


def linear8(
    weight: QuantisedWeight, bias: torch.Tensor | None, dtype: torch.dtype
) -> QuantisedLinear | None:
    """Linear layer of a matrix; None if it has other scales than one per output."""
    if weight.num_groups != 1 or weight.zeros is not None:
        return None
    is_fast = multiplies_bytes(weight.values.device)
    return Linear8(weight, bias, dtype) if is_fast else FloatLinear(weight, bias, dtype)


class FloatLinear(QuantisedLinear):
    """Linear layer over the dequantised floats of a matrix."""

    __slots__ = ("bias", "weight")

    def __init__(
        self, weight: QuantisedWeight, bias: torch.Tensor | None, dtype: torch.dtype
    ) -> None:
        self.weight = weight.dequantised(dtype)
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight, self.bias)


class Linear8(QuantisedLinear):
    """Linear layer in oneDNN's own layout; the values themselves can be dropped."""

    __slots__ = ("bias", "dtype", "scales", "weight", "zeros")

    def __init__(
        self, weight: QuantisedWeight, bias: torch.Tensor | None, dtype: torch.dtype
    ) -> None:
        rows, columns = weight.shape
        self.weight = _ONEDNN.qlinear_prepack(weight.values, [1, columns])
        self.scales = weight.scales.view(-1).contiguous()
        self.zeros = torch.zeros(rows, dtype=torch.int32)
        self.bias = bias
        self.dtype = dtype

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) == 1:
            return self._one(x)
        if not len(x):
            return x.new_empty(0, len(self.scales))
        largest = torch.linalg.vector_norm(x, torch.inf, 1, keepdim=True, dtype=torch.float32)
        largest.clamp_min_(TINY)
        bytes_of = torch.mul(x, LARGEST / largest).add_(ZERO + 0.5).to(torch.uint8)
        made = self._product(bytes_of, 1.0, torch.float32).mul_(largest.div_(LARGEST))
        if self.bias is not None:
            made += self.bias
        return made.to(self.dtype)

    def _one(self, x: torch.Tensor) -> torch.Tensor:
        """The same for one row, whose scale is one number."""
        row = x.float()
        low, high = torch.aminmax(row)
        largest = max(-low.item(), high.item(), TINY)
        bytes_of = torch.mul(row, LARGEST / largest).add_(ZERO + 0.5).to(torch.uint8)
        made = self._product(bytes_of, largest / LARGEST, self.dtype)
        return made if self.bias is None else made.add_(self.bias)

    def _product(self, bytes_of: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
        return _ONEDNN.qlinear_pointwise.default(
            bytes_of,
            scale,
            ZERO,
            self.weight,
            self.scales,
            self.zeros,
            None,
            1.0,
            0,
            dtype,
            "none",
            [],
            "",
        )
