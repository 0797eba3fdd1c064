"""Sequences with known and new tokens, layers over them, and their results, for the batch invariance suite. Test
process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional

from tenonry_testkit.step_formulas import rms_norm, turned_heads
from tenonry_torch_base.invariant import InvariantLayerParts, StepKeys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenonry_torch_base.invariant import InvariantKernels, InvariantLayer, LayerAdapters
    from tenonry_torch_base.step_kernels import AttentionParts

HALF_ULP = 2.0**-8  # relative to the number, of bfloat16
GROUP = 5  # maximum queries of a group of `Sequences`


class Weights(NamedTuple):
    """Weights of a layer, [outputs, inputs] each; `bias` of the projection, or None."""

    projection: torch.Tensor
    bias: torch.Tensor | None
    out: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


class Piece(NamedTuple):
    """Tokens [begin, end) of a sequence."""

    sequence: int
    begin: int
    end: int


class Sequences:
    """Sequences of `known` tokens with K/V, and `new` ones without, with random hidden states and rotations. Unused
    places in blocks are NaN.
    """

    def __init__(
        self,
        parts: AttentionParts,
        hidden_size: int,
        known: Sequence[int],
        new: Sequence[int],
        block_size: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """`dtype`: of the blocks."""
        self.known = known
        self.lengths = [before + after for before, after in zip(known, new, strict=True)]
        width = -(-max(self.lengths) // block_size)
        count = len(new)
        self.table = torch.randperm(count * width).int().view(count, width)
        shape = (count * width, 2 * parts.kv_heads, block_size, parts.size)
        self.blocks = torch.full(shape, float("nan"), dtype=dtype)
        for sequence, length in enumerate(known):
            for token in range(length):
                block = self.table[sequence, token // block_size]
                self.blocks[block, :, token % block_size] = torch.randn(shape[1], shape[3])
        longest = max(self.lengths)
        self.hidden = torch.randn(count, longest, hidden_size)
        rotated = 2 * int(torch.randint(parts.size // 2 + 1, ()))
        angles = torch.rand(longest, 1, rotated) * 6
        self.cos = angles.cos()
        self.sin = angles.sin()

    def pieces(self) -> list[Piece]:
        """Return all new tokens, in one piece each."""
        bounds = zip(self.known, self.lengths, strict=True)
        return [Piece(sequence, begin, end) for sequence, (begin, end) in enumerate(bounds)]

    def keys(self, pieces: Sequence[Piece], *, last_only: bool = False) -> StepKeys:
        """Return the keys of a step with these pieces; with `last_only` the last token of each is the only query."""
        block_size = self.blocks.shape[2]
        slots: list[int] = []
        positions: list[int] = []
        groups: list[tuple[int, int, int]] = []
        for line, (sequence, begin, end) in enumerate(pieces):
            table = self.table[sequence].tolist()
            slots += [
                table[token // block_size] * block_size + token % block_size
                for token in range(begin, end)
            ]
            asked = range(end - 1 if last_only else begin, end)
            firsts = range(0, len(asked), GROUP)
            begun = len(positions)
            groups += [(begun + first, min(GROUP, len(asked) - first), line) for first in firsts]
            positions += asked
        starts, counts, lines = torch.tensor(groups).t().contiguous()
        table = self.table[[piece.sequence for piece in pieces]]
        return StepKeys(
            self.blocks,
            torch.tensor(slots),
            table.contiguous(),
            torch.tensor(positions),
            starts,
            counts,
            lines,
        )

    def inputs(self, pieces: Sequence[Piece]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return (hidden states, cosines, sines) of a step with these pieces."""
        hidden = torch.cat([self.hidden[part.sequence, part.begin : part.end] for part in pieces])
        cos, sin = (
            torch.cat([table[part.begin : part.end] for part in pieces])
            for table in (self.cos, self.sin)
        )
        return hidden, cos, sin

    def run(
        self, kernel: InvariantLayer, pieces: Sequence[Piece], adapters: LayerAdapters | None = None
    ) -> list[torch.Tensor]:
        """Return the results of a step for each piece."""
        made = kernel(*self.inputs(pieces), self.keys(pieces), adapters=adapters)
        return list(made.split([part.end - part.begin for part in pieces]))


def layer_of(
    kernels: InvariantKernels,
    attention: AttentionParts,
    hidden: int,
    inner: int,
    *,
    has_bias: bool,
    dtype: torch.dtype = torch.float32,
) -> tuple[InvariantLayerParts, Weights]:
    """Return a layer with random weights of this type."""
    made = attention.heads * attention.size
    drawn = (
        torch.randn(attention.columns, hidden) / hidden**0.5,
        torch.randn(attention.columns) if has_bias else None,
        torch.randn(hidden, made) / made**0.5,
        torch.randn(2 * inner, hidden) / hidden**0.5,
        torch.randn(hidden, inner) / inner**0.5,
    )
    weights = Weights(*(None if each is None else each.to(dtype) for each in drawn))
    parts = InvariantLayerParts(
        attention=attention,
        norm_weight=torch.randn(hidden).to(dtype),
        norm_eps=1e-6,
        projection=kernels.linear(weights.projection, weights.bias),
        out=kernels.linear(weights.out, None),
        second_norm_weight=torch.randn(hidden).to(dtype),
        second_norm_eps=1e-5,
        gate_up=kernels.linear(weights.gate_up, None),
        down=kernels.linear(weights.down, None),
    )
    return parts, weights


def layer_formula(
    parts: InvariantLayerParts, weights: Weights, sequences: Sequences, sequence: int
) -> torch.Tensor:
    """Compute the results of a layer for the new tokens of a sequence, in float64. K and V in bfloat16 are read as
    written, provided they are close to the exact values.
    """
    attention = parts.attention
    block_size = sequences.blocks.shape[2]
    begin = sequences.known[sequence]
    end = sequences.lengths[sequence]
    x = sequences.hidden[sequence, begin:end].double()
    projected = rms_norm(x, parts.norm_weight, parts.norm_eps) @ weights.projection.double().t()
    if weights.bias is not None:
        projected = projected + weights.bias.double()
    cos = sequences.cos[begin:end].double()
    sin = sequences.sin[begin:end].double()
    query, key, value = turned_heads(attention, projected, cos, sin)
    both = torch.cat([key, value], 1)
    table = sequences.table[sequence].tolist()
    places = [(table[token // block_size], token % block_size) for token in range(end)]
    held = torch.stack([sequences.blocks[block, :, place].double() for block, place in places])
    if sequences.blocks.dtype == torch.bfloat16:
        torch.testing.assert_close(held[begin:], both, rtol=HALF_ULP, atol=HALF_ULP)
        every = held
    else:
        every = torch.cat([held[:begin], both])  # [end, 2 * kv_heads, size]
    sharing = attention.heads // attention.kv_heads
    keys, values = (part.repeat_interleave(sharing, 1) for part in every.chunk(2, 1))
    scores = torch.einsum("qhd,thd->hqt", query, keys) * attention.scaling
    positions = torch.arange(begin, end)[:, None]
    tokens = torch.arange(end)
    hidden = tokens > positions
    if attention.window:
        hidden |= tokens <= positions - attention.window
    shown = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    made = torch.einsum("hqt,thd->qhd", shown, values).flatten(1)
    middle = x + made @ weights.out.double().t()
    normed = rms_norm(middle, parts.second_norm_weight, parts.second_norm_eps)
    gate, up = (normed @ weights.gate_up.double().t()).chunk(2, -1)
    return middle + (functional.silu(gate) * up) @ weights.down.double().t()
