"""The kernel of linear layers in bfloat16, on weights as oneDNN lays them out. Worker process."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

from tenonry_kernels_cpu.library import ADDRESS, COUNT, function
from tenonry_kernels_cpu.weights import address

if TYPE_CHECKING:
    from tenonry_torch_base.step_kernels import BlockedWeight


class BlockedStruct(ctypes.Structure):
    """`blocked` in native/blocked.h."""

    _fields_ = (
        *((name, COUNT) for name in ("inputs", "outputs")),
        *((name, ADDRESS) for name in ("weight", "bias")),
    )


def blocked_struct(weight: BlockedWeight) -> BlockedStruct:
    """For kernels; `weight` must live as long."""
    return BlockedStruct(
        weight.inputs,
        weight.outputs,
        address(weight.blocks),
        address(weight.bias),
    )


class BlockedLinear:
    """See `StepKernels.linear`."""

    __slots__ = ("_address", "_function", "_held", "_inputs", "_outputs", "_threads")

    def __init__(self, weight: BlockedWeight, instruction_set: str, threads: int) -> None:
        made = blocked_struct(weight)
        self._held = (weight, made)
        self._address = ctypes.addressof(made)
        self._inputs = weight.inputs
        self._outputs = weight.outputs
        self._threads = threads
        self._function = function("blocked_linear", instruction_set)

    def __call__(self, x: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        count = len(x)
        out = x.new_empty(count, self._outputs)
        self._function(
            self._address,
            self._threads,
            count,
            x.data_ptr(),
            self._inputs,
            address(other),
            out.data_ptr(),
        )
        return out
