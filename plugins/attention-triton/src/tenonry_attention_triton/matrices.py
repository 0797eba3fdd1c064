"""Linear layers over quantised matrices on CUDA. Worker process."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from tenonry_attention_triton.backend import is_interpreted
from tenonry_torch_base.low_bit import LowBitWeight, matrix_of
from tenonry_torch_base.quantisations import QuantisedLinear

if TYPE_CHECKING:
    from tenonry_attention_triton.launch_matrices import RoundedRows
    from tenonry_torch_base.quantisations import QuantisedWeight

logger = logging.getLogger("tenonry.worker")

CHUNKS = (128, 64, 32)  # columns that a kernel takes together
FP8 = torch.float8_e4m3fn
FIRST_WITH_FP8 = (8, 9)  # compute capability whose products take fp8
ALIGNED = 16  # sides of a matrix of fp8 products


class TritonMatrices:
    """Implements `tenonry_worker_torch.fuse.quantised.MatrixKernels` for matrices of 4 and 8 bits."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device = device
        self._dtype = dtype
        self._multiplies_fp8 = multiplies_fp8(device, dtype)
        self._warm: set[tuple[object, ...]] = set()

    def layer(
        self, weight: QuantisedWeight | LowBitWeight, bias: torch.Tensor | None
    ) -> QuantisedLinear | None:
        """Layer of a matrix; None for groups that no kernel takes."""
        matrix = matrix_of(weight)
        is_scaled_by_output = matrix.num_groups == 1 and matrix.values.dtype == FP8
        if (
            self._multiplies_fp8
            and is_scaled_by_output
            and not any(side % ALIGNED for side in matrix.shape)
        ):
            return ScaledLinear(matrix, bias, self._device, self._dtype)
        ordered = in_order(matrix)
        if ordered is None:
            return None
        order, matrix = ordered
        width = matrix.shape[1] // matrix.num_groups
        chunk = next((size for size in CHUNKS if width % size == 0), None)
        if chunk is None:
            return None
        made = PackedLinear(matrix, order, chunk, bias, self._device)
        if self._device.type == "cuda" or is_interpreted():
            self._compile(made)
        return made

    def _compile(self, layer: PackedLinear) -> None:
        """Launch the variants of the kernel for such a layer, if it is the first one."""
        from tenonry_attention_triton.launch_matrices import constants, warm

        # Triton compiles separate variants for multiples of 16, and for 1.
        special = (layer.outputs % 16 == 0, layer.chunks % 16 == 0, layer.chunks == 1)
        variant = (*constants(layer, 1, self._dtype.itemsize).values(), *special)
        if variant not in self._warm:
            self._warm.add(variant)
            warm(layer, self._dtype)


class PackedLinear(QuantisedLinear):
    """Weights in 4 or 8 bits, inputs as they are. Its layout is that of `matrix_kernels.product`."""

    def __init__(
        self,
        matrix: QuantisedWeight,
        order: torch.Tensor | None,
        chunk: int,
        bias: torch.Tensor | None,
        device: torch.device,
    ) -> None:
        outputs, inputs = matrix.shape
        self.outputs = outputs
        self.chunk = chunk
        self.chunks = inputs // chunk
        self.per_group = self.chunks // matrix.num_groups
        self.is_float = matrix.values.dtype == FP8
        self.bits = matrix.bits
        values = matrix.values.to(device).view(torch.uint8 if self.is_float else torch.int8)
        if self.bits == 4:
            values = (values + 8).view(torch.uint8)
        octets = values.view(outputs, self.chunks, chunk).transpose(0, 1)
        if self.bits == 4:
            octets = octets[..., : chunk // 2] | octets[..., chunk // 2 :] << 4
        self.packed_octets = octets.contiguous().view(torch.uint8)
        self.scales = matrix.scales.to(device).t().contiguous()
        self.zeros = None
        if matrix.zeros is not None:
            self.zeros = matrix.zeros.to(device).float().t().contiguous()
        self.order = None if order is None else order.to(device)
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.order is not None:
            x = x.index_select(1, self.order)
        out = x.new_empty(len(x), self.outputs)
        if len(x):
            from tenonry_attention_triton import launch_matrices

            launch_matrices.product(self, x.contiguous(), out)
        return out


class ScaledLinear(QuantisedLinear):
    """Weights in fp8 with a scale per output; inputs are rounded to fp8 with a scale per row."""

    def __init__(
        self,
        matrix: QuantisedWeight,
        bias: torch.Tensor | None,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.weight = matrix.values.to(device)
        self.scales = matrix.scales.to(device).view(1, -1)
        self.bias = bias
        self.dtype = dtype

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not len(x):
            return x.new_empty(0, len(self.weight))
        from tenonry_attention_triton.launch_matrices import rounded_rows

        return self.of_rounded(rounded_rows(x.contiguous()))

    def of_rounded(self, x: RoundedRows) -> torch.Tensor:
        """As a call, of at least one row that is rounded already."""
        made: torch.Tensor = torch._scaled_mm(  # noqa: SLF001 - its public name came later
            x.values, self.weight.t(), scale_a=x.scales, scale_b=self.scales, out_dtype=self.dtype
        )
        return made if self.bias is None else made.add_(self.bias)


def multiplies_fp8(device: torch.device, dtype: torch.dtype) -> bool:
    """Return True if torch multiplies fp8 with scales of rows and outputs; else one log line has the reason."""
    reason = None
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < FIRST_WITH_FP8:
        reason = "the GPU has no products of fp8"
    else:
        ones = torch.ones(ALIGNED, ALIGNED, device=device).to(FP8)
        scale = torch.ones(ALIGNED, 1, device=device)
        try:
            torch._scaled_mm(ones, ones.t(), scale_a=scale, scale_b=scale.t(), out_dtype=dtype)  # noqa: SLF001
        except (RuntimeError, ValueError) as error:
            reason = str(error).partition("\n")[0]
    if reason is not None:
        logger.info("Reading fp8 matrices and multiplying them in %s: %s", dtype, reason)
    return reason is None


def in_order(matrix: QuantisedWeight) -> tuple[torch.Tensor | None, QuantisedWeight] | None:
    """The columns of each group side by side, and their places before; None for groups of several sizes."""
    if matrix.group_of is None:
        return None, matrix
    counts = matrix.group_of.bincount(minlength=matrix.num_groups)
    if counts.min() != counts.max():
        return None
    order = matrix.group_of.argsort(stable=True)
    return order, replace(matrix, values=matrix.values[:, order], group_of=None)
