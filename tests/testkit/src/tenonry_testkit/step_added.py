"""Adapters in layers for batch invariance, in the conformance suite: their contribution to a token, in any batch. Test
process.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from tenonry_testkit.step_parts import attention_parts, low_rank_parts
from tenonry_testkit.step_sequences import Piece, Sequences, Weights, layer_formula, layer_of
from tenonry_testkit.step_suite import EXAMPLES, SEEDS, KernelSuite, assert_near
from tenonry_torch_base.invariant import LayerAdapters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenonry_torch_base.low_rank import LowRankKernel, LowRankParts
    from tenonry_torch_base.step_kernels import AttentionParts

SLOTS = 3
NONE = -1


class Added(NamedTuple):
    """Adapters in slots, for those linear layers of a layer that have some; `slots`: slot of each sequence, or NONE."""

    parts: list[LowRankParts | None]
    kernels: list[LowRankKernel | None]
    slots: list[int]

    def to(self, pieces: Sequence[Piece], *, last_only: bool = False) -> LayerAdapters:
        """Return adapters of a step with these pieces; with `last_only` the last token of each is the only query."""
        slots = torch.tensor([self.slots[piece.sequence] for piece in pieces], dtype=torch.int32)
        counts = torch.tensor([piece.end - piece.begin for piece in pieces])
        of_tokens = slots.repeat_interleave(counts)
        return LayerAdapters(*self.kernels, of_tokens, slots if last_only else of_tokens)

    def merged(self, weights: Weights, sequence: int) -> Weights:
        """Return the merged weights of the layer and of the sequence's adapter, in float64."""
        slot = self.slots[sequence]
        names = ("projection", "out", "gate_up", "down")
        whole = {name: getattr(weights, name).double() for name in names}
        if slot != NONE:
            for name, parts in zip(names, self.parts, strict=True):
                if parts is not None:
                    whole[name] = whole[name] + product_of(parts, slot, len(whole[name]))
        return weights._replace(**whole)


def product_of(parts: LowRankParts, slot: int, outputs: int) -> torch.Tensor:
    """[outputs, inputs] added by an adapter to a weight, in float64."""
    down = parts.down[slot].double()
    made = torch.zeros(outputs, len(down), dtype=torch.float64)
    for number, (up, begin) in enumerate(zip(parts.ups, parts.begins, strict=True)):
        _, rank, size = up.shape
        columns = down[:, number * rank : (number + 1) * rank]
        made[begin : begin + size] = (columns @ up[slot].double()).t()
    return made


class AddedSuite(KernelSuite):
    """Adapters in layers for batch invariance, compared with their formula and across batches."""

    def added(
        self,
        attention: AttentionParts,
        hidden: int,
        inner: int,
        rank: int,
        has: Sequence[bool],
        slots: list[int],
        dtype: torch.dtype,
    ) -> Added:
        """Return adapters with random weights; `has`: linear layers with adapters."""
        one = attention.kv_heads * attention.size
        made = attention.heads * attention.size
        shapes = [
            (hidden, [made, one, one]),
            (made, [hidden]),
            (hidden, [inner, inner]),
            (inner, [hidden]),
        ]
        parts = [
            low_rank_parts(SLOTS, inputs, sizes, rank, 0, dtype) if is_there else None
            for (inputs, sizes), is_there in zip(shapes, has, strict=True)
        ]
        kernels = [None if each is None else self.offered(each) for each in parts]
        return Added(parts, kernels, slots)

    @EXAMPLES
    @given(
        SEEDS,
        st.lists(st.integers(1, 20), min_size=1, max_size=4),
        st.integers(0, 40),
        st.integers(1, 90),
        st.integers(1, 90),
        st.integers(1, 20),
        st.lists(st.booleans(), min_size=4, max_size=4),
        st.sampled_from([torch.float32, torch.bfloat16]),
    )
    def test_adapters_in_an_invariant_layer_are_their_formula_in_any_company(
        self,
        seed: int,
        new: list[int],
        most_known: int,
        hidden: int,
        inner: int,
        rank: int,
        has: list[bool],
        dtype: torch.dtype,
    ):
        torch.manual_seed(seed)
        drawn = np.random.default_rng(seed)
        attention = attention_parts(2, 2, 16, is_gated=False, is_normalised=True)
        kernels = self.invariant()
        parts, weights = layer_of(kernels, attention, hidden, inner, has_bias=True, dtype=dtype)
        kernel = kernels.layer(parts)
        slots = drawn.integers(NONE, SLOTS, len(new)).tolist()
        added = self.added(attention, hidden, inner, rank, has, slots, dtype)
        known = drawn.integers(0, most_known + 1, len(new)).tolist()
        sequences = Sequences(attention, hidden, known, new, 4, dtype)
        before = sequences.blocks.clone()
        pieces = sequences.pieces()
        made = sequences.run(kernel, pieces, added.to(pieces))
        for number, got in enumerate(made):
            merged = added.merged(weights, number)
            assert_near(got, layer_formula(parts, merged, sequences, number))
        for whole, got in zip(pieces, made, strict=True):
            sequences.blocks.copy_(before)
            cut = int(drawn.integers(whole.begin, whole.end))
            steps = [
                Piece(whole.sequence, begin, end)
                for begin, end in itertools.pairwise([whole.begin, cut, whole.end])
                if begin < end
            ]
            alone = [sequences.run(kernel, [step], added.to([step]))[0] for step in steps]
            assert torch.equal(torch.cat(alone), got)

    def test_adapters_in_an_invariant_layer_of_much_work_are_the_same_in_any_company(self):
        """Enough work to be shared among threads. A token without an adapter has the bits of a layer without any."""
        torch.manual_seed(0)
        attention = attention_parts(2, 2, 32, is_gated=False, is_normalised=True)
        kernels = self.invariant()
        parts, _ = layer_of(kernels, attention, 128, 320, has_bias=False)
        kernel = kernels.layer(parts)
        slots = [1, NONE, 2, 1]
        added = self.added(attention, 128, 320, 8, [True] * 4, slots, torch.float32)
        sequences = Sequences(attention, 128, [0] * 4, [150, 200, 1, 90], 16)
        pieces = sequences.pieces()
        together = sequences.run(kernel, pieces, added.to(pieces))
        for piece, got in zip(pieces, together, strict=True):
            adapters = added.to([piece]) if slots[piece.sequence] != NONE else None
            assert torch.equal(sequences.run(kernel, [piece], adapters)[0], got)

    def test_adapters_of_the_queries_that_go_on(self):
        torch.manual_seed(0)
        attention = attention_parts(2, 2, 16, is_gated=False, is_normalised=True)
        kernels = self.invariant()
        parts, _ = layer_of(kernels, attention, 32, 48, has_bias=True)
        kernel = kernels.layer(parts)
        added = self.added(attention, 32, 48, 4, [True] * 4, [2, NONE, 0], torch.float32)
        sequences = Sequences(attention, 32, [3, 0, 40], [9, 5, 1], 4)
        pieces = sequences.pieces()
        made = sequences.run(kernel, pieces, added.to(pieces))
        hidden, cos, sin = sequences.inputs(pieces)
        keys = sequences.keys(pieces, last_only=True)
        ends = torch.tensor([9, 14, 15]) - 1
        got = kernel(hidden, cos, sin, keys, ends, added.to(pieces, last_only=True))
        assert torch.equal(got, torch.stack([part[-1] for part in made]))
