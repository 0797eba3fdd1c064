"""Rotary position embedding (arXiv:2104.09864) from a table, in three operations. Worker process, any device.

The table holds what the model's own module computes, so every variant with fixed frequencies is covered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tenonry_worker_torch.loading.rotary import call_rotary, device_of

if TYPE_CHECKING:
    from torch import nn

MAX_TABLE_POSITIONS = 1 << 18
PIECE = 2048  # positions whose intermediate results stay in a processor's cache


class RopeTable:
    """`cos`, `sin` [positions, size] in the model's data type; `sin` is given with its first half negated.

    With x rolled by half its size, x·cos + rolled·sin equals x·cos + rotate_half(x)·sin of the usual formulation.
    """

    __slots__ = ("cos", "sin", "size")

    def __init__(self, cos: torch.Tensor, sin: torch.Tensor) -> None:
        self.size = cos.shape[-1]
        self.cos = cos
        self.sin = sin

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cos and sin [T, 1, size] of `positions` i64[T]."""
        cos = self.cos.index_select(0, positions)
        sin = self.sin.index_select(0, positions)
        return cos[:, None], sin[:, None]


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, out: torch.Tensor) -> None:
    """Rotate `x` [T, heads, D] into `out` of the same shape, which may be `x` itself.

    With cos and sin of fewer than D elements the rest of each head is only copied.
    """
    size = cos.shape[-1]
    whole = x.shape[-1]
    if size < whole:
        if out is not x:
            rest = x.narrow(-1, size, whole - size)
            out.narrow(-1, size, whole - size).copy_(rest)
        x = x.narrow(-1, 0, size)
        out = out.narrow(-1, 0, size)
    torch.addcmul(x * cos, x.roll(size // 2, -1), sin, out=out)


def rope_table(
    rotary: nn.Module, layer_type: str, num_positions: int, dtype: torch.dtype
) -> RopeTable | None:
    """The table for positions 0 … num_positions − 1; None if it would be too long, the module
    does not know the type, or what it makes is not plain (cos, sin).
    """
    if num_positions > MAX_TABLE_POSITIONS:
        return None
    rope_type = getattr(rotary, "rope_type", None)
    if isinstance(rope_type, dict) and layer_type not in rope_type:  # such layers are not rotated
        return None
    device = device_of(rotary)
    hidden = torch.zeros(1, 1, 1, dtype=dtype, device=device)
    tables: list[torch.Tensor] = []
    for begin in range(0, num_positions, PIECE):
        end = min(begin + PIECE, num_positions)
        positions = torch.arange(begin, end, device=device)[None]
        with torch.no_grad():
            made = call_rotary(rotary, hidden, positions, layer_type)
        if not _is_plain(made, end - begin):
            return None
        if not tables:
            tables = [part.new_empty(num_positions, part.shape[-1]) for part in made]
        for table, part in zip(tables, made, strict=True):
            table[begin:end] = part[0]
    cos, sin = tables
    sin[:, : sin.shape[-1] // 2].neg_()
    return RopeTable(cos, sin)


def _is_plain(made: object, num_positions: int) -> bool:
    """Whether a module made cos and sin [1, positions, size], both with two equal halves."""
    if not (isinstance(made, tuple) and len(made) == 2):
        return False
    cos, sin = made
    if cos.dim() != 3 or cos.shape != sin.shape:
        return False
    if cos.shape[:2] != (1, num_positions):
        return False
    return _repeats(cos) and _repeats(sin)


def _repeats(table: torch.Tensor) -> bool:
    """Whether the two halves of [..., size] are equal."""
    half = table.shape[-1] // 2
    return torch.equal(table[..., :half], table[..., half:])
