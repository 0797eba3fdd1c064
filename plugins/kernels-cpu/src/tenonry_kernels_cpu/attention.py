"""The kernel of attention over rows of one new token. Worker process."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

from tenonry_kernels_cpu.library import ADDRESS, COUNT, REAL, function
from tenonry_kernels_cpu.weights import address

if TYPE_CHECKING:
    from tenonry_torch_base.step_kernels import AttentionParts, HeldKeys


class _Struct(ctypes.Structure):
    """`attention` in native/attention.h."""

    _fields_ = (
        *((name, COUNT) for name in ("heads", "kv_heads", "size", "is_gated")),
        ("norm_weight", ADDRESS),
        ("norm_eps", REAL),
        ("scaling", REAL),
    )


class _Held(ctypes.Structure):
    """`held` in native/attention.h."""

    _fields_ = (
        ("slab", ADDRESS),
        ("value_step", COUNT),
        ("capacity", COUNT),
        ("column", ADDRESS),
        ("blocks", ADDRESS),
        ("block_size", COUNT),
        ("place", ADDRESS),
    )


class Attention:
    """An `AttentionKernel`. `address`: of the struct, while this lives."""

    __slots__ = ("_columns", "_function", "_kept", "_scratch", "_size", "address")

    def __init__(self, parts: AttentionParts, instruction_set: str) -> None:
        made = struct_of(parts)
        self._kept = (parts, made)
        self.address = ctypes.addressof(made)
        self._columns = parts.heads * parts.size
        self._size = parts.size
        self._scratch = torch.empty(0)
        self._function = function("attention", instruction_set)

    def __call__(
        self, projected: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, held: HeldKeys
    ) -> torch.Tensor:
        count, columns = projected.shape
        wanted = self.floats(held)
        if len(self._scratch) < wanted:
            self._scratch = torch.empty(wanted)
        where = place_of(held)
        out = projected.new_empty(count, self._columns)
        self._function(
            self.address,
            count,
            projected.data_ptr(),
            columns,
            cos.data_ptr(),
            sin.data_ptr(),
            cos.shape[-1],
            ctypes.addressof(where),
            out.data_ptr(),
            self._scratch.data_ptr(),
        )
        return out

    def floats(self, held: HeldKeys) -> int:
        """The scratch that the kernel needs."""
        return held.slab.shape[3] + 2 * self._size


def struct_of(parts: AttentionParts) -> ctypes.Structure:
    """C structure for kernels; `parts` must outlive it."""
    return _Struct(
        parts.heads,
        parts.kv_heads,
        parts.size,
        int(parts.is_gated),
        address(parts.norm_weight),
        parts.norm_eps,
        parts.scaling,
    )


def place_of(held: HeldKeys) -> ctypes.Structure:
    """Location of these keys for the kernel."""
    slab = held.slab
    return _Held(
        slab.data_ptr(),
        slab.stride(0),
        slab.shape[3],
        held.column.data_ptr(),
        held.blocks.data_ptr(),
        held.blocks.shape[2],
        held.places.data_ptr(),
    )
