"""Part of the conformance suite for first halves of layers. Test process."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from tenonry_testkit.step_formulas import attention, delta_rule, half
from tenonry_testkit.step_parts import (
    attention_parts,
    delta_rule_parts,
    half_parts,
    held_keys,
    in_float64,
    states_of,
)
from tenonry_testkit.step_suite import COUNTS, EXAMPLES, SEEDS, SIZES, KernelSuite, assert_near
from tenonry_torch_base.kernel_parts import AttentionHalfParts, DeltaRuleHalfParts


class HalfSuite(KernelSuite):
    """Kernels of first halves, compared with their formulas."""

    @EXAMPLES
    @given(SEEDS, COUNTS, SIZES, st.integers(1, 3), SIZES, SIZES, st.booleans())
    def test_delta_rule_half_is_its_formula_over_several_tokens(
        self,
        seed: int,
        count: int,
        hidden: int,
        sharing: int,
        key: int,
        value: int,
        is_ordered: bool,
    ):
        torch.manual_seed(seed)
        parts = delta_rule_parts(2, sharing, (key, value), 4, is_ordered=is_ordered)
        around = half_parts(hidden, parts)
        kernel = self.offered(DeltaRuleHalfParts(around, parts))
        rows = torch.randperm(count + 2)[:count]
        window, matrix = states_of(parts, count + 2)
        before = matrix.clone()
        exact = (window[rows].double(), matrix[rows].double())
        for _ in range(2):
            x = torch.randn(count, hidden)
            made = kernel(x, window, matrix, rows)
            assert_near(made, half(around, x, lambda given: delta_rule(parts, given, *exact)))
            assert_near(window[rows], exact[0])
            assert_near(matrix[rows], exact[1])
        others = torch.ones(count + 2, dtype=torch.bool)
        others[rows] = False
        assert torch.equal(matrix[others], before[others])

    @EXAMPLES
    @given(SEEDS, COUNTS, SIZES, st.integers(1, 3), SIZES, st.integers(1, 40), st.booleans())
    def test_attention_half_is_its_formula(
        self,
        seed: int,
        count: int,
        hidden: int,
        sharing: int,
        size: int,
        capacity: int,
        is_gated: bool,
    ):
        torch.manual_seed(seed)
        parts = attention_parts(2, sharing, size, is_gated=is_gated, is_normalised=is_gated)
        around = half_parts(hidden, parts)
        kernel = self.offered(AttentionHalfParts(around, parts))
        held = held_keys(parts, count, capacity)
        exact = in_float64(held)
        rotated = 2 * (size // 2)
        cos = torch.randn(count, 1, rotated)
        sin = torch.randn(count, 1, rotated)
        x = torch.randn(count, hidden)
        kept = x.clone()
        made = kernel(x, cos, sin, held)
        assert_near(made, half(around, x, lambda given: attention(parts, given, cos, sin, exact)))
        assert torch.equal(x, kept)
        assert_near(held.blocks, exact.blocks)

    def test_halves_keep_what_is_not_a_number_to_its_row(self):
        rule = delta_rule_parts(1, 2, (16, 16), 4, is_ordered=True)
        around = half_parts(24, rule)
        kernel = self.offered(DeltaRuleHalfParts(around, rule))
        window, matrix = states_of(rule, 3)
        exact = (window.double(), matrix.double())
        x = torch.randn(3, 24)
        x[1, 5] = float("inf")
        made = kernel(x, window, matrix, None)
        wanted = half(around, x, lambda given: delta_rule(rule, given, *exact))
        assert not made[1].isfinite().all()
        assert_near(made[[0, 2]], wanted[[0, 2]])
