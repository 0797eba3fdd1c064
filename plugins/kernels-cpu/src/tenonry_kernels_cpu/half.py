"""The kernels of first halves of decoder layers, around those of their parts. Worker process."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from tenonry_kernels_cpu.attention import Attention, place_of
from tenonry_kernels_cpu.delta_rule import NO_ROWS, DeltaRule
from tenonry_kernels_cpu.library import ADDRESS, COUNT, REAL, function
from tenonry_kernels_cpu.weights import address, by_input

if TYPE_CHECKING:
    from tenonry_torch_base.step_kernels import AttentionParts, DeltaRuleParts, HalfParts, HeldKeys


class _Struct(ctypes.Structure):
    """`half` in native/half.h."""

    _fields_ = (
        *((name, COUNT) for name in ("hidden", "columns", "made")),
        *((name, ADDRESS) for name in ("norm_weight", "projection", "out")),
        ("norm_eps", REAL),
    )


class _Ends:
    """Weights around a part, and scratch for all of it. Holds a transposed copy of the weights."""

    __slots__ = ("_kept", "_room", "_scratch", "_token_floats", "address")

    def __init__(self, half: HalfParts, projection: torch.Tensor) -> None:
        """`projection` [columns, hidden]: its columns in the order that the part takes."""
        columns, hidden = projection.shape
        made = half.out.shape[1]
        weights = [half.norm_weight, by_input(projection), by_input(half.out)]
        struct = _Struct(hidden, columns, made, *map(address, weights), half.norm_eps)
        self._kept = (weights, struct)
        self.address = ctypes.addressof(struct)
        self._token_floats = hidden + columns + made
        self._room = 0
        self._scratch = torch.empty(0)

    def scratch(self, count: int, floats: int) -> int:
        """Address of scratch for `count` tokens and a part that needs `floats` floats."""
        wanted = count * self._token_floats + floats
        if wanted > self._room:
            self._scratch = torch.empty(wanted)
            self._room = wanted
        return self._scratch.data_ptr()


class DeltaRuleHalf:
    """See `DeltaRuleHalfParts`."""

    __slots__ = ("_ends", "_function", "_part")

    def __init__(self, half: HalfParts, parts: DeltaRuleParts, instruction_set: str) -> None:
        projection = half.projection if parts.order is None else half.projection[parts.order]
        self._ends = _Ends(half, projection)
        self._part = DeltaRule(replace(parts, order=None), instruction_set)
        self._function = function("delta_rule_half", instruction_set)

    def __call__(
        self,
        hidden: torch.Tensor,
        window: torch.Tensor,
        matrix: torch.Tensor,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        count = len(hidden)
        out = torch.empty_like(hidden)
        window_step, _, tap_step = window.stride()
        self._function(
            self._ends.address,
            self._part.address,
            count,
            hidden.data_ptr(),
            window.data_ptr(),
            window_step,
            tap_step,
            matrix.data_ptr(),
            matrix.stride(0),
            NO_ROWS if rows is None else rows.data_ptr(),
            out.data_ptr(),
            self._ends.scratch(count, self._part.floats),
        )
        return out


class AttentionHalf:
    """See `AttentionHalfParts`."""

    __slots__ = ("_ends", "_function", "_part")

    def __init__(self, half: HalfParts, parts: AttentionParts, instruction_set: str) -> None:
        self._ends = _Ends(half, half.projection)
        self._part = Attention(parts, instruction_set)
        self._function = function("attention_half", instruction_set)

    def __call__(
        self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, held: HeldKeys
    ) -> torch.Tensor:
        count = len(hidden)
        out = torch.empty_like(hidden)
        where = place_of(held)
        self._function(
            self._ends.address,
            self._part.address,
            count,
            hidden.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            cos.shape[-1],
            ctypes.addressof(where),
            out.data_ptr(),
            self._ends.scratch(count, self._part.floats(held)),
        )
        return out
