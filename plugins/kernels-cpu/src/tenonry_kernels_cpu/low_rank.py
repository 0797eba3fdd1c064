"""The kernel of the low-rank adapters of a linear layer. Worker process."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

from tenonry_kernels_cpu.library import ADDRESS, COUNT, function

if TYPE_CHECKING:
    from tenonry_torch_base.low_rank import LowRankParts, SlotTokens

ROWS = 8  # tokens that are computed together, at most


class _Part(ctypes.Structure):
    """`low_rank_part` in native/low_rank.h."""

    _fields_ = (("up", ADDRESS), ("begin", COUNT), ("size", COUNT))


class _Struct(ctypes.Structure):
    """`low_rank` in native/low_rank.h."""

    _fields_ = (
        *((name, COUNT) for name in ("inputs", "width", "rank", "parts", "is_half")),
        *((name, ADDRESS) for name in ("down", "part")),
    )


class LowRank:
    """See `LowRankParts`. Computes in float32, whatever the weights are in. `address`: of its struct."""

    __slots__ = ("_function", "_held", "_scratch", "address")

    def __init__(self, parts: LowRankParts, instruction_set: str) -> None:
        _, inputs, width = parts.down.shape
        described = [
            _Part(up.data_ptr(), begin, up.shape[2])
            for up, begin in zip(parts.ups, parts.begins, strict=True)
        ]
        array = (_Part * len(described))(*described)
        made = _Struct(
            inputs,
            width,
            parts.ups[0].shape[1],
            len(described),
            int(parts.down.dtype == torch.bfloat16),
            parts.down.data_ptr(),
            ctypes.addressof(array),
        )
        self._held = (parts, array, made)
        self.address = ctypes.addressof(made)
        self._function = function("low_rank", instruction_set)
        self._scratch = torch.empty(ROWS * (inputs + width))

    def __call__(self, x: torch.Tensor, out: torch.Tensor, tokens: SlotTokens) -> None:
        self._function(
            self.address,
            tokens.order.data_ptr(),
            tokens.ends.data_ptr(),
            len(tokens.ends),
            x.data_ptr(),
            x.stride(0),
            out.data_ptr(),
            out.stride(0),
            self._scratch.data_ptr(),
        )
