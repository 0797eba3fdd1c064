"""The conformance suite of step kernels: every kernel that an implementation offers, against its formula. Test process.

from tenonry_testkit.step_kernels import StepKernelsContract

class TestMine(StepKernelsContract):
    kernels = "my_package:MyKernels"

Needs torch: install `tenonry-testkit[torch]`. Kernels that an implementation does not offer are skipped.
"""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from tenonry_testkit.step_added import AddedSuite
from tenonry_testkit.step_between import BetweenSuite
from tenonry_testkit.step_chunks import ChunkSuite
from tenonry_testkit.step_formulas import (
    attention,
    best_allowed,
    delta_rule,
    experts,
    low_rank,
    rms_norm,
)
from tenonry_testkit.step_halves import HalfSuite
from tenonry_testkit.step_invariant import InvariantSuite
from tenonry_testkit.step_layers import LayerSuite
from tenonry_testkit.step_low_bit import LowBitSuite
from tenonry_testkit.step_parts import (
    attention_parts,
    delta_rule_parts,
    expert_parts,
    held_keys,
    in_float64,
    low_rank_parts,
    random_masks,
    slot_tokens,
    states_of,
)
from tenonry_testkit.step_prompts import PromptSuite
from tenonry_testkit.step_rounded import RoundedSuite
from tenonry_testkit.step_rounds import RoundSuite
from tenonry_testkit.step_suite import COUNTS, EXAMPLES, SEEDS, SIZES, assert_near
from tenonry_torch_base.kernel_parts import BestAllowedParts, NormParts
from tenonry_torch_base.low_rank import SlotTokens


class StepKernelsContract(
    HalfSuite,
    LayerSuite,
    BetweenSuite,
    ChunkSuite,
    PromptSuite,
    RoundSuite,
    RoundedSuite,
    LowBitSuite,
    InvariantSuite,
    AddedSuite,
):
    """Subclass and name a class, or an existing object."""

    def test_is_described(self):
        made = self.made()
        assert made.name
        assert made.interface_version == 1
        assert isinstance(made.description, str)

    @EXAMPLES
    @given(SEEDS, COUNTS, st.integers(1, 200))
    def test_rms_norm_is_its_formula(self, seed: int, count: int, size: int):
        torch.manual_seed(seed)
        weight = torch.randn(size)
        x = torch.randn(count, size) * 3
        kernel = self.offered(NormParts(weight, 1e-6))
        assert_near(kernel(x.clone()), rms_norm(x, weight, 1e-6))

    @EXAMPLES
    @given(
        SEEDS,
        COUNTS,
        st.integers(1, 3),
        st.integers(1, 3),
        SIZES,
        SIZES,
        st.integers(2, 5),
        st.booleans(),
    )
    def test_delta_rule_is_its_formula_over_several_tokens(
        self,
        seed: int,
        count: int,
        key_heads: int,
        sharing: int,
        key: int,
        value: int,
        taps: int,
        is_ordered: bool,
    ):
        torch.manual_seed(seed)
        parts = delta_rule_parts(key_heads, sharing, (key, value), taps, is_ordered=is_ordered)
        kernel = self.offered(parts)
        window, matrix = states_of(parts, count)
        exact = (window.double(), matrix.double())
        for _ in range(3):
            projected = torch.randn(count, parts.columns)
            made = kernel(projected, window, matrix, None)
            assert_near(made, delta_rule(parts, projected, *exact))
            assert_near(window, exact[0])
            assert_near(matrix, exact[1])

    @EXAMPLES
    @given(SEEDS, COUNTS)
    def test_delta_rule_changes_the_states_of_its_rows_only(self, seed: int, count: int):
        torch.manual_seed(seed)
        parts = delta_rule_parts(2, 2, (8, 24), 4, is_ordered=True)
        kernel = self.offered(parts)
        rows = torch.randperm(count + 4)[:count]
        window, matrix = states_of(parts, count + 4)
        before = (window.clone(), matrix.clone())
        exact = (window[rows].double(), matrix[rows].double())
        projected = torch.randn(count, parts.columns)
        made = kernel(projected, window, matrix, rows)
        assert_near(made, delta_rule(parts, projected, *exact))
        assert_near(matrix[rows], exact[1])
        others = torch.ones(count + 4, dtype=torch.bool)
        others[rows] = False
        assert torch.equal(window[others], before[0][others])
        assert torch.equal(matrix[others], before[1][others])

    def test_delta_rule_keeps_what_is_not_a_number_to_its_row(self):
        parts = delta_rule_parts(1, 2, (16, 16), 4, is_ordered=False)
        kernel = self.offered(parts)
        window, matrix = states_of(parts, 3)
        exact = (window.double(), matrix.double())
        projected = torch.randn(3, parts.columns)
        projected[1, 0] = float("nan")
        made = kernel(projected, window, matrix, None)
        wanted = delta_rule(parts, projected, *exact)
        assert made[1].isnan().any()
        assert_near(made[[0, 2]], wanted[[0, 2]])

    @EXAMPLES
    @given(
        SEEDS,
        COUNTS,
        st.integers(1, 3),
        st.integers(1, 3),
        SIZES,
        st.integers(0, 20),
        st.integers(1, 40),
        st.booleans(),
        st.booleans(),
    )
    def test_attention_is_its_formula(
        self,
        seed: int,
        count: int,
        kv_heads: int,
        sharing: int,
        size: int,
        pairs: int,
        capacity: int,
        is_gated: bool,
        is_normalised: bool,
    ):
        torch.manual_seed(seed)
        parts = attention_parts(
            kv_heads, sharing, size, is_gated=is_gated, is_normalised=is_normalised
        )
        kernel = self.offered(parts)
        held = held_keys(parts, count, capacity)
        exact = in_float64(held)
        projected = torch.randn(count, parts.columns)
        rotated = 2 * min(pairs, size // 2)
        cos = torch.randn(count, 1, rotated)
        sin = torch.randn(count, 1, rotated)
        made = kernel(projected.clone(), cos, sin, held)
        assert_near(made, attention(parts, projected, cos, sin, exact))
        # Everything else is unchanged, including NaN.
        torch.testing.assert_close(
            held.slab.double(), exact.slab, rtol=1e-4, atol=1e-4, equal_nan=True
        )
        assert_near(held.blocks, exact.blocks)

    def test_attention_keeps_what_is_not_a_number_to_its_row(self):
        parts = attention_parts(2, 2, 16, is_gated=True, is_normalised=True)
        kernel = self.offered(parts)
        held = held_keys(parts, 3, 24)
        exact = in_float64(held)
        projected = torch.randn(3, parts.columns)
        projected[1] = float("inf")
        cos = torch.randn(3, 1, 8)
        sin = torch.randn(3, 1, 8)
        made = kernel(projected.clone(), cos, sin, held)
        wanted = attention(parts, projected, cos, sin, exact)
        assert made[1].isnan().any()
        assert_near(made[[0, 2]], wanted[[0, 2]])

    @EXAMPLES
    @given(SEEDS, COUNTS, SIZES, st.integers(1, 9), SIZES, st.integers(0, 40), st.booleans())
    def test_experts_are_their_formula(
        self,
        seed: int,
        count: int,
        hidden: int,
        num_experts: int,
        inner: int,
        shared: int,
        has_gate: bool,
    ):
        torch.manual_seed(seed)
        chosen = 1 + seed % num_experts
        parts = expert_parts(hidden, num_experts, chosen, inner, shared, has_gate=has_gate)
        kernel = self.offered(parts)
        given_rows = torch.randn(count, hidden)
        kept = given_rows.clone()
        assert_near(kernel(given_rows), experts(parts, given_rows))
        assert torch.equal(given_rows, kept)

    def test_experts_keep_what_is_not_a_number_to_its_row(self):
        parts = expert_parts(24, 4, 2, 16, 8, has_gate=True)
        kernel = self.offered(parts)
        hidden = torch.randn(5, 24)
        hidden[2, 3] = float("inf")
        made = kernel(hidden)
        wanted = experts(parts, hidden)
        assert not made[2].isfinite().all()
        others = [0, 1, 3, 4]
        assert_near(made[others], wanted[others])

    @EXAMPLES
    @given(
        SEEDS,
        st.integers(1, 40),
        st.integers(1, 4),
        SIZES,
        st.lists(SIZES, min_size=1, max_size=3),
        st.integers(1, 20),
        st.integers(0, 3),
        st.sampled_from([torch.float32, torch.bfloat16]),
    )
    def test_low_rank_is_its_formula_and_leaves_all_else(
        self,
        seed: int,
        count: int,
        slots: int,
        inputs: int,
        sizes: list[int],
        rank: int,
        gap: int,
        dtype: torch.dtype,
    ):
        torch.manual_seed(seed)
        parts = low_rank_parts(slots, inputs, sizes, rank, gap, dtype)
        kernel = self.offered(parts)
        columns = sum(sizes) + gap * (len(sizes) + 1)
        for _ in range(2):
            # Neither need begin or end at the bounds of its tensor.
            x = torch.randn(count, inputs + 2).to(dtype)[:, 1:-1]
            whole = torch.randn(count, columns + 2).to(dtype)
            out = whole[:, 1:-1]
            before = whole.clone()
            tokens = slot_tokens(slots, count)
            wanted = low_rank(parts, x, out, tokens)
            kernel(x, out, tokens)
            if dtype == torch.float32:
                assert_near(out, wanted)
            else:
                torch.testing.assert_close(out, wanted.to(dtype), rtol=2e-2, atol=2e-2)
            whole[tokens.order, 1:-1] = before[tokens.order, 1:-1]
            assert torch.equal(whole, before)
            for up in parts.ups:  # adapters are added and removed
                up.copy_(torch.randn(up.shape))

    def test_low_rank_keeps_what_is_not_a_number_to_its_token(self):
        for dtype in (torch.float32, torch.bfloat16):
            parts = low_rank_parts(2, 24, [32, 7], 16, 0, dtype)
            kernel = self.offered(parts)
            x = torch.randn(6, 24).to(dtype)
            x[2, 3] = float("nan")
            out = torch.randn(6, 39).to(dtype)
            tokens = SlotTokens(torch.tensor([5, 2, 0, 1]), torch.tensor([1, 4]))
            before = out.clone()
            kernel(x, out, tokens)
            assert out[2].isnan().all()
            assert out[[0, 1, 5]].isfinite().all()
            assert torch.equal(out[[3, 4]], before[[3, 4]])

    @EXAMPLES
    @given(
        SEEDS,
        COUNTS,
        st.integers(1, 6),
        st.sampled_from([0, 1, 5, 31, 32]),
        st.sampled_from([torch.float32, torch.bfloat16]),
    )
    def test_best_allowed_is_the_first_maximum_of_what_has_a_bit(
        self, seed: int, count: int, words: int, most_bits: int, dtype: torch.dtype
    ):
        torch.manual_seed(seed)
        kernel = self.offered(BestAllowedParts())
        integers = torch.randint(-4, 4, (count, 32 * words))  # with ties
        logits = integers.to(dtype)
        is_least = torch.rand(logits.shape) < 0.1
        logits[is_least] = float("-inf")
        is_most = torch.rand(logits.shape) < 0.01
        logits[is_most] = float("inf")
        masks = random_masks(count, words, most_bits / 32)
        before = logits.clone()
        ids, best = kernel(logits, masks)
        wanted_ids, wanted = best_allowed(logits, masks)
        assert best.dtype == torch.float32
        assert torch.equal(best.double(), wanted)
        has_one = ~wanted.isneginf()
        assert torch.equal(ids[has_one], wanted_ids[has_one])
        assert torch.equal(logits, before)

    def test_best_allowed_says_which_rows_hold_what_is_not_a_number(self):
        kernel = self.offered(BestAllowedParts())
        for dtype in (torch.float32, torch.bfloat16):
            logits = torch.arange(4 * 64).view(4, 64)
            logits = logits.to(dtype)
            masks = torch.full((4, 2), -1, dtype=torch.int32)
            masks[2] = 0
            logits[1, 3] = float("nan")
            logits[2, 40] = float("nan")
            ids, best = kernel(logits, masks)
            assert best.isnan().tolist() == [False, True, True, False]
            first = logits.float().argmax(-1)
            assert ids[0] == first[0]
            assert ids[3] == first[3]
