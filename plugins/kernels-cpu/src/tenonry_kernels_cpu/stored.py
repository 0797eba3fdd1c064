"""Matrices of GGUF files in the layout of kernels, and rows of that layout as numbers. Worker process."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, NamedTuple

import torch

from tenonry_kernels_cpu.blocked import blocked_struct
from tenonry_kernels_cpu.library import function
from tenonry_kernels_cpu.weights import address
from tenonry_torch_base.low_bit import empty_weight

if TYPE_CHECKING:
    from tenonry_torch_base.low_bit import LowBitWeight
    from tenonry_torch_base.quantisations import StoredBlocks


class Kind(NamedTuple):
    """`inputs` and `num_bytes` of a block, of which `group` inputs share a scale; bits of the layout."""

    inputs: int
    num_bytes: int
    group: int
    bits: int
    has_minimum: bool


SMALL = 32  # inputs of blocks whose scales and minimums are in float16

# In the order of native/stored.h.
KINDS = {
    "Q4_0": Kind(32, 18, 32, 4, has_minimum=False),
    "Q4_1": Kind(32, 20, 32, 4, has_minimum=True),
    "Q5_0": Kind(32, 22, 32, 8, has_minimum=False),
    "Q5_1": Kind(32, 24, 32, 8, has_minimum=True),
    "Q8_0": Kind(32, 34, 32, 8, has_minimum=False),
    "Q4_K": Kind(256, 144, 32, 4, has_minimum=True),
    "Q5_K": Kind(256, 176, 32, 8, has_minimum=True),
    "Q6_K": Kind(256, 210, 16, 8, has_minimum=False),
}


def laid_out(matrix: StoredBlocks, instruction_set: str, threads: int) -> LowBitWeight | None:
    """See `StepKernels.laid_out`."""
    kind, octets = matrix
    known = KINDS.get(kind)
    outputs, row_bytes = octets.shape
    if known is None or row_bytes % known.num_bytes or not octets.is_contiguous():
        return None
    inputs = row_bytes // known.num_bytes * known.inputs
    weight = empty_weight(
        known.bits,
        outputs,
        inputs,
        inputs // known.group,
        torch.float16 if known.inputs == SMALL else torch.float32,
        has_minimums=known.has_minimum,
    )
    if weight is None:
        return None
    fill = function("lay_out", instruction_set)
    struct = blocked_struct(weight)
    if fill(ctypes.addressof(struct), threads, list(KINDS).index(kind), octets.data_ptr()):
        raise ValueError(f"a matrix of {kind} has scales that are not finite")
    return weight


class LowBitRows:
    """See `LowBitRowsParts`."""

    __slots__ = ("_address", "_function", "_held", "_threads", "dtype")

    def __init__(
        self, weight: LowBitWeight, dtype: torch.dtype, instruction_set: str, threads: int
    ) -> None:
        made = blocked_struct(weight)
        self._held = (weight, made)
        self._address = ctypes.addressof(made)
        self._threads = threads
        self._function = function("low_bit_rows", instruction_set)
        self.dtype = dtype

    def __call__(self, rows: torch.Tensor | None = None) -> torch.Tensor:
        weight = self._held[0]
        count = weight.outputs if rows is None else len(rows)
        out = torch.empty(count, weight.inputs, dtype=self.dtype)
        is_half = int(self.dtype == torch.bfloat16)
        self._function(self._address, self._threads, count, address(rows), is_half, out.data_ptr())
        return out
