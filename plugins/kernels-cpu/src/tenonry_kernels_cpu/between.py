"""Kernels of the operations between a layer's matrix products, in bfloat16. Worker process."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from tenonry_kernels_cpu.attention import struct_of
from tenonry_kernels_cpu.library import function

if TYPE_CHECKING:
    import torch

    from tenonry_torch_base.step_kernels import AttentionParts


class HalfNorm:
    """See `Bfloat16NormParts`."""

    __slots__ = ("_eps", "_function", "_threads", "_weight")

    def __init__(
        self, weight: torch.Tensor, eps: float, instruction_set: str, threads: int
    ) -> None:
        self._weight = weight.contiguous()
        self._eps = eps
        self._threads = threads
        self._function = function("half_norm", instruction_set)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(x.shape)
        self._function(
            self._threads,
            len(x),
            x.shape[1],
            x.data_ptr(),
            self._weight.data_ptr(),
            self._eps,
            out.data_ptr(),
        )
        return out


class TurnHeads:
    """See `TurnParts`."""

    __slots__ = ("_address", "_function", "_held", "_threads")

    def __init__(self, parts: AttentionParts, instruction_set: str, threads: int) -> None:
        made = struct_of(parts)
        self._held = (parts, made)
        self._address = ctypes.addressof(made)
        self._threads = threads
        self._function = function("turn_heads", instruction_set)

    def __call__(self, projected: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        self._function(
            self._address,
            self._threads,
            len(projected),
            projected.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            cos.shape[-1],
        )


class Gate:
    """See `GateParts`."""

    __slots__ = ("_function", "_threads")

    def __init__(self, instruction_set: str, threads: int) -> None:
        self._threads = threads
        self._function = function("gate", instruction_set)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        inner = x.shape[1] // 2
        out = x.new_empty(len(x), inner)
        self._function(self._threads, len(x), inner, x.data_ptr(), out.data_ptr())
        return out
