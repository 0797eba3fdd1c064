"""Part of the conformance suite for batch invariance: a token's bits are independent of its batch and match the
formulas. Test process.
"""

from __future__ import annotations

import itertools

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from tenonry_testkit.step_formulas import rms_norm
from tenonry_testkit.step_parts import attention_parts
from tenonry_testkit.step_sequences import Piece, Sequences, layer_formula, layer_of
from tenonry_testkit.step_suite import EXAMPLES, SEEDS, SIZES, KernelSuite, assert_near

HEADS = st.sampled_from([2, 6, 16, 24, 32, 40, 64, 128])
WINDOWS = st.sampled_from([0, 0, 1, 3, 17])
BLOCKS = st.sampled_from([1, 4, 16, 80])
DTYPES = st.sampled_from([torch.float32, torch.bfloat16])  # of weights, and of K and V
NEW_TOKENS = st.lists(st.integers(1, 20), min_size=1, max_size=4)


def same_bits(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Equality of bits, NaN included."""
    return torch.equal(got.view(torch.int16), wanted.view(torch.int16))


class InvariantSuite(KernelSuite):
    """Batch-invariant kernels, compared with their formulas and across batches."""

    @EXAMPLES
    @given(
        SEEDS,
        st.integers(1, 230),
        st.integers(1, 150),
        st.integers(1, 700),
        st.booleans(),
        st.booleans(),
        DTYPES,
    )
    def test_invariant_linear_is_its_formula_and_the_same_for_a_row_in_any_company(
        self,
        seed: int,
        count: int,
        outputs: int,
        inputs: int,
        has_bias: bool,
        has_other: bool,
        dtype: torch.dtype,
    ):
        torch.manual_seed(seed)
        weight = (torch.randn(outputs, inputs) / inputs**0.5).to(dtype)
        bias = torch.randn(outputs).to(dtype) if has_bias else None
        kernel = self.invariant().linear(weight, bias)
        assert torch.equal(kernel.weight(), weight)
        x = torch.randn(count, inputs)
        other = torch.randn(count, outputs) if has_other else None
        made = kernel(x, other)
        wanted = functional.linear(
            x.double(), weight.double(), None if bias is None else bias.double()
        )
        assert_near(made, wanted if other is None else wanted + other.double())
        begin = int(torch.randint(count, ()))
        end = int(torch.randint(begin, count, ())) + 1
        span = slice(begin, end)
        part = kernel(x[span].clone(), None if other is None else other[span].clone())
        assert torch.equal(part, made[span])
        assert kernel(x[:0]).shape == (0, outputs)

    @EXAMPLES
    @given(SEEDS, st.integers(1, 40), st.integers(1, 200), DTYPES)
    def test_invariant_norm_is_its_formula_and_the_same_for_a_row_in_any_company(
        self, seed: int, count: int, size: int, dtype: torch.dtype
    ):
        torch.manual_seed(seed)
        weight = torch.randn(size).to(dtype)
        kernel = self.invariant().norm(weight, 1e-6)
        x = torch.randn(count, size) * 3
        made = kernel(x)
        assert_near(made, rms_norm(x, weight, 1e-6))
        for row in range(count):
            assert torch.equal(kernel(x[row : row + 1].clone())[0], made[row])

    @EXAMPLES
    @given(
        SEEDS,
        NEW_TOKENS,
        st.integers(0, 90),
        st.integers(1, 3),
        st.integers(1, 3),
        HEADS,
        BLOCKS,
        WINDOWS,
        SIZES,
        st.integers(1, 90),
        st.booleans(),
        st.booleans(),
        DTYPES,
    )
    def test_invariant_layer_is_its_formula_and_the_same_for_a_token_in_any_company(
        self,
        seed: int,
        new: list[int],
        most_known: int,
        kv_heads: int,
        sharing: int,
        size: int,
        block_size: int,
        window: int,
        hidden: int,
        inner: int,
        is_normalised: bool,
        has_bias: bool,
        dtype: torch.dtype,
    ):
        torch.manual_seed(seed)
        drawn = np.random.default_rng(seed)
        attention = attention_parts(
            kv_heads, sharing, size, is_gated=False, is_normalised=is_normalised, window=window
        )
        parts, weights = layer_of(
            self.invariant(), attention, hidden, inner, has_bias=has_bias, dtype=dtype
        )
        kernel = self.invariant().layer(parts)
        known = drawn.integers(0, most_known + 1, len(new)).tolist()
        sequences = Sequences(attention, hidden, known, new, block_size, dtype)
        before = sequences.blocks.clone()
        kept = sequences.hidden.clone()
        made = sequences.run(kernel, sequences.pieces())
        wanted = [layer_formula(parts, weights, sequences, number) for number in range(len(new))]
        assert torch.equal(sequences.hidden, kept)
        for got, exact in zip(made, wanted, strict=True):
            assert_near(got, exact)
        written = sequences.blocks.clone()
        slots = sequences.keys(sequences.pieces()).slots
        places = (slots // block_size, slice(None), slots % block_size)
        assert written[places].isfinite().all()
        written[places] = before[places]
        assert same_bits(written, before)  # the other contents are unchanged
        written = sequences.blocks.clone()
        sequences.blocks.copy_(before)
        for whole, got in zip(sequences.pieces(), made, strict=True):
            cuts = [whole.begin, int(drawn.integers(whole.begin, whole.end)), whole.end]
            bounds = itertools.pairwise(cuts)
            steps = [Piece(whole.sequence, begin, end) for begin, end in bounds if begin < end]
            alone = [sequences.run(kernel, [step])[0] for step in steps]
            assert torch.equal(torch.cat(alone), got)
        assert same_bits(sequences.blocks, written)

    def test_invariant_layer_of_much_work_is_the_same_for_a_token_in_any_company(self):
        """Enough work to be shared among threads."""
        torch.manual_seed(0)
        attention = attention_parts(2, 2, 32, is_gated=False, is_normalised=True)
        kernels = self.invariant()
        parts, _ = layer_of(kernels, attention, 128, 320, has_bias=False)
        kernel = kernels.layer(parts)
        sequences = Sequences(attention, 128, [40, 0], [200, 130], 16)
        before = sequences.blocks.clone()
        made = sequences.run(kernel, sequences.pieces())
        written = sequences.blocks.clone()
        sequences.blocks.copy_(before)
        for sequence, got in enumerate(made):
            first = sequences.known[sequence]
            cuts = [*range(first, sequences.lengths[sequence], 37), sequences.lengths[sequence]]
            steps = [Piece(sequence, begin, end) for begin, end in itertools.pairwise(cuts)]
            alone = [sequences.run(kernel, [step])[0] for step in steps]
            assert torch.equal(torch.cat(alone), got)
        assert same_bits(sequences.blocks, written)

    def test_invariant_layer_goes_on_with_the_queries_that_it_is_told(self):
        torch.manual_seed(0)
        attention = attention_parts(2, 2, 16, is_gated=False, is_normalised=True)
        parts, _ = layer_of(self.invariant(), attention, 32, 48, has_bias=True)
        kernel = self.invariant().layer(parts)
        sequences = Sequences(attention, 32, [3, 0, 40], [9, 5, 1], 4)
        pieces = sequences.pieces()
        before = sequences.blocks.clone()
        made = sequences.run(kernel, pieces)
        hidden = torch.cat(
            [sequences.hidden[part.sequence, part.begin : part.end] for part in pieces]
        )
        cos = torch.cat([sequences.cos[part.begin : part.end] for part in pieces])
        sin = torch.cat([sequences.sin[part.begin : part.end] for part in pieces])
        ends = torch.tensor([9, 14, 15]) - 1
        got = kernel(hidden, cos, sin, sequences.keys(pieces, last_only=True), ends)
        assert torch.equal(got, torch.stack([part[-1] for part in made]))
        written = sequences.blocks.clone()
        sequences.blocks.copy_(before)
        none = torch.zeros(0, dtype=torch.int64)
        keys = sequences.keys(pieces)._replace(positions=none, begins=none, counts=none, lines=none)
        assert kernel(hidden, cos, sin, keys, none).shape == (0, 32)
        assert same_bits(sequences.blocks, written)  # all keys and values, without any query

    def test_invariant_layer_keeps_what_is_not_a_number_to_its_sequence(self):
        torch.manual_seed(1)
        attention = attention_parts(2, 2, 16, is_gated=False, is_normalised=True)
        parts, _ = layer_of(self.invariant(), attention, 32, 48, has_bias=False)
        kernel = self.invariant().layer(parts)
        sequences = Sequences(attention, 32, [3, 7, 0], [2, 1, 20], 4)
        before = sequences.blocks.clone()
        wanted = sequences.run(kernel, sequences.pieces())
        sequences.blocks.copy_(before)
        sequences.hidden[1, 7, 5] = float("inf")
        made = sequences.run(kernel, sequences.pieces())
        assert not made[1].isfinite().all()
        assert torch.equal(made[0], wanted[0])
        assert torch.equal(made[2], wanted[2])
