"""Linear layer kernels: bfloat16, on weights in oneDNN's layout, and on quantised weights. Worker process."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

from tenonry_kernels_cpu.library import ADDRESS, COUNT, function
from tenonry_kernels_cpu.weights import address
from tenonry_torch_base.low_bit import LowBitWeight

if TYPE_CHECKING:
    from tenonry_torch_base.step_kernels import BlockedWeight

# As in native/blocked.h.
HALF_BITS = 16
SCALE_TYPES = (torch.float32, torch.bfloat16, torch.float16)


class BlockedStruct(ctypes.Structure):
    """`blocked` in native/blocked.h."""

    _fields_ = (
        *((name, COUNT) for name in ("inputs", "outputs")),
        *((name, ADDRESS) for name in ("weight", "bias")),
        *((name, COUNT) for name in ("bits", "groups")),
        *((name, ADDRESS) for name in ("scales", "zeros", "minimums")),
        *((name, COUNT) for name in ("scale_type", "input_bytes")),
    )


def blocked_struct(weight: BlockedWeight | LowBitWeight) -> BlockedStruct:
    """C structure for kernels; `weight` must outlive it."""
    ends = (weight.inputs, weight.outputs, address(weight.blocks), address(weight.bias))
    if not isinstance(weight, LowBitWeight):
        return BlockedStruct(*ends, HALF_BITS)
    return BlockedStruct(
        *ends,
        weight.bits,
        weight.num_groups,
        address(weight.scales),
        address(weight.zeros),
        address(weight.minimums),
        SCALE_TYPES.index(weight.scales.dtype),
        weight.input_bits // 8,
    )


def prepared_bytes(struct: BlockedStruct, instruction_set: str) -> int:
    """Size of an input row prepared for a weight; 0 if it is multiplied unprepared."""
    found: int = function("prepared_bytes", instruction_set)(ctypes.addressof(struct))
    return found


class BlockedLinear:
    """See `LinearParts`."""

    __slots__ = ("_address", "_function", "_held", "_inputs", "_outputs", "_row_bytes", "_threads")

    def __init__(self, weight: BlockedWeight, instruction_set: str, threads: int) -> None:
        made = blocked_struct(weight)
        self._held = (weight, made)
        self._address = ctypes.addressof(made)
        self._inputs = weight.inputs
        self._outputs = weight.outputs
        self._row_bytes = prepared_bytes(made, instruction_set)
        self._threads = threads
        self._function = function("blocked_linear", instruction_set)

    def __call__(self, x: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        count = len(x)
        out = x.new_empty(count, self._outputs)
        scratch = None
        if self._row_bytes:
            scratch = torch.empty(count * self._row_bytes, dtype=torch.uint8)
        self._function(
            self._address,
            self._threads,
            count,
            x.data_ptr(),
            self._inputs,
            address(other),
            out.data_ptr(),
            address(scratch),
        )
        return out


class LowBitLinear:
    """See `LowBitParts`."""

    __slots__ = ("_address", "_function", "_held", "_order", "_outputs", "_row_bytes", "_threads")

    def __init__(self, weight: LowBitWeight, instruction_set: str, threads: int) -> None:
        made = blocked_struct(weight)
        self._held = (weight, made)
        self._address = ctypes.addressof(made)
        self._order = weight.order
        self._outputs = weight.outputs
        self._row_bytes = prepared_bytes(made, instruction_set)
        self._threads = threads
        self._function = function("low_bit_linear", instruction_set)

    def __call__(self, x: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        if self._order is not None:
            x = x.index_select(1, self._order)
        count = len(x)
        out = x.new_empty(count, self._outputs)
        scratch = torch.empty(count * self._row_bytes, dtype=torch.uint8)
        self._function(
            self._address,
            self._threads,
            count,
            x.data_ptr(),
            int(x.dtype == torch.float32),
            address(other),
            out.data_ptr(),
            scratch.data_ptr(),
        )
        return out
