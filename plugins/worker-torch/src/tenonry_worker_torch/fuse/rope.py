"""Rotary position embedding (arXiv:2104.09864) from a table, in three operations. Worker process, any device.

The table holds results of the model's own module, so every variant is covered: if tables depend on the sequence length,
a token's own is looked up, or made.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from tenonry_worker_torch.loading.rotary import call_rotary, device_of
from tenonry_worker_torch.loading.rotary_lengths import by_length

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from tenonry_worker_torch.loading.rotary_lengths import RotaryByLength

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

    def at(
        self, positions: torch.Tensor, lengths: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Cos and sin [T, 1, size] of `positions` i64[T] in sequences of `lengths` i64[T].

        `lengths` None: each sequence ends with its token.
        """
        cos = self.cos.index_select(0, positions)
        sin = self.sin.index_select(0, positions)
        return cos[:, None], sin[:, None]

    def in_float(self) -> RopeTable:
        """The same numbers in float32."""
        return RopeTable(self.cos.float(), self.sin.float())


class SwitchedTable(RopeTable):
    """LongRoPE: the table of sequences longer than `original`, followed by that of the others."""

    __slots__ = ("_original", "_start")

    def __init__(self, long: RopeTable, short: RopeTable, original: int) -> None:
        super().__init__(torch.cat([long.cos, short.cos]), torch.cat([long.sin, short.sin]))
        self._original = original
        self._start = len(long.cos)

    def at(
        self, positions: torch.Tensor, lengths: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        lengths = positions + 1 if lengths is None else lengths
        is_short = lengths <= self._original
        return super().at(torch.where(is_short, positions + self._start, positions))

    def in_float(self) -> SwitchedTable:
        made = copy.copy(self)
        made.cos, made.sin = self.cos.float(), self.sin.float()
        return made


class GrowingTable(RopeTable):
    """Dynamic NTK: the table of sequences of at most `original` tokens; the module computes it for longer ones."""

    __slots__ = ("_by_length", "_layer_type", "_made_in", "_original")

    def __init__(
        self, short: RopeTable, original: int, by_length: RotaryByLength, layer_type: str
    ) -> None:
        super().__init__(short.cos, short.sin)
        self._original = original
        self._by_length = by_length
        self._layer_type = layer_type
        self._made_in = short.cos.dtype

    def at(
        self, positions: torch.Tensor, lengths: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        lengths = positions + 1 if lengths is None else lengths
        longer = (lengths > self._original).nonzero()[:, 0]
        if not len(longer):
            return super().at(positions)
        cos, sin = super().at(positions.clamp(max=self._original - 1))
        long = lengths[longer]
        for table in long.unique().tolist():
            places = longer[long == table]
            asked = positions[None, places]
            made = self._by_length.rotated(table, asked, self._layer_type, self._made_in)
            cos[places] = made[0][0, :, None].to(cos.dtype)
            sin[places] = _negated(made[1][0])[:, None].to(sin.dtype)
        return cos, sin

    def in_float(self) -> GrowingTable:
        made = copy.copy(self)
        made.cos, made.sin = self.cos.float(), self.sin.float()
        return made


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
    """Return the table for positions 0 … num_positions − 1; None if it would be too long, the module does not support
    the type, or its result is not plain (cos, sin).
    """
    if num_positions > MAX_TABLE_POSITIONS:
        return None
    rope_type = getattr(rotary, "rope_type", None)
    if isinstance(rope_type, dict) and layer_type not in rope_type:  # such layers are not rotated
        return None
    lengths = by_length(rotary)
    kind = layer_type if isinstance(rope_type, dict) else ""
    if lengths is None or kind not in lengths.originals:
        hidden = torch.zeros(1, 1, 1, dtype=dtype, device=device_of(rotary))
        return _table(
            lambda positions: call_rotary(rotary, hidden, positions, layer_type),
            num_positions,
            device_of(rotary),
        )
    return _table_by_length(lengths, kind, num_positions, dtype, device_of(rotary))


def _table_by_length(
    lengths: RotaryByLength, kind: str, num_positions: int, dtype: torch.dtype, device: torch.device
) -> RopeTable | None:
    original = lengths.originals[kind]

    def of(table: int, count: int) -> RopeTable | None:
        return _table(
            lambda positions: lengths.rotated(table, positions, kind, dtype), count, device
        )

    short = of(original, min(original, num_positions))
    if short is None or num_positions <= original:
        return short
    if lengths.grows(kind):
        return GrowingTable(short, original, lengths, kind)
    long = of(original + 1, num_positions)
    return None if long is None else SwitchedTable(long, short, original)


def _table(
    make: Callable[[torch.Tensor], Any], num_positions: int, device: torch.device
) -> RopeTable | None:
    """Table of the results of `make` for positions [1, T]."""
    tables: list[torch.Tensor] = []
    for begin in range(0, num_positions, PIECE):
        end = min(begin + PIECE, num_positions)
        positions = torch.arange(begin, end, device=device)[None]
        with torch.no_grad():
            made = make(positions)
        if not _is_plain(made, end - begin):
            return None
        if not tables:
            tables = [part.new_empty(num_positions, part.shape[-1]) for part in made]
        for table, part in zip(tables, made, strict=True):
            table[begin:end] = part[0]
    cos, sin = tables
    return RopeTable(cos, _negated(sin))


def _negated(sin: torch.Tensor) -> torch.Tensor:
    """`sin` [..., size] with its first half negated, in place."""
    sin[..., : sin.shape[-1] // 2].neg_()
    return sin


def _is_plain(made: object, num_positions: int) -> bool:
    """Return True if a module returned cos and sin [1, positions, size], both with two equal halves."""
    if not (isinstance(made, tuple) and len(made) == 2):
        return False
    cos, sin = made
    if cos.dim() != 3 or cos.shape != sin.shape:
        return False
    if cos.shape[:2] != (1, num_positions):
        return False
    return _repeats(cos) and _repeats(sin)


def _repeats(table: torch.Tensor) -> bool:
    """Return True if the two halves of [..., size] are equal."""
    half = table.shape[-1] // 2
    return torch.equal(table[..., :half], table[..., half:])
