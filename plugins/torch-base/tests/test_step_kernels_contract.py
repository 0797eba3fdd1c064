"""The suite of step kernels, over the formulas themselves and over kernels with one defect each."""

from __future__ import annotations

import pytest
import torch

from tenonry_testkit import step_formulas
from tenonry_testkit.outcomes import failing_tests
from tenonry_testkit.step_kernels import StepKernelsContract
from tenonry_testkit.step_parts import in_float64
from tenonry_torch_base.kernel_parts import BestAllowedParts, NormParts
from tenonry_torch_base.low_rank import LowRankParts
from tenonry_torch_base.step_kernels import (
    AttentionParts,
    DeltaRuleParts,
    ExpertParts,
    StepKernels,
    makes,
)

NORM = "test_rms_norm_is_its_formula"
RULE = "test_delta_rule_is_its_formula_over_several_tokens"
ATTENTION = "test_attention_is_its_formula"
EXPERTS = "test_experts_are_their_formula"
LOW_RANK = "test_low_rank_is_its_formula_and_leaves_all_else"
BEST = "test_best_allowed_is_the_first_maximum_of_what_has_a_bit"


class Formulas(StepKernels):
    """Computes in float64, rounded at the end."""

    name = "formulas"

    @classmethod
    def refusal(cls):
        return None

    @makes(NormParts)
    def norm(self, parts):
        return lambda x: step_formulas.rms_norm(x, parts.weight, parts.eps).float()

    @makes(DeltaRuleParts)
    def delta_rule(self, parts):
        def kernel(projected, window, matrix, rows):
            chosen = slice(None) if rows is None else rows
            exact = window[chosen].double(), matrix[chosen].double()
            made = step_formulas.delta_rule(parts, projected, *exact)
            window[chosen], matrix[chosen] = exact[0].float(), exact[1].float()
            return made.float()

        return kernel

    @makes(AttentionParts)
    def attention(self, parts):
        def kernel(projected, cos, sin, held):
            exact = in_float64(held)
            made = step_formulas.attention(parts, projected, cos, sin, exact)
            held.slab.copy_(exact.slab)
            held.blocks.copy_(exact.blocks)
            return made.float()

        return kernel

    @makes(ExpertParts)
    def experts(self, parts):
        return lambda hidden: step_formulas.experts(parts, hidden).float()

    @makes(LowRankParts)
    def low_rank(self, parts):
        def kernel(x, out, tokens):
            made = step_formulas.low_rank(parts, x, out, tokens)
            out[tokens.order] = made[tokens.order].to(out.dtype)

        return kernel

    @makes(BestAllowedParts)
    def best_allowed(self, parts):
        def kernel(logits, masks):
            ids, best = step_formulas.best_allowed(logits, masks)
            return ids, best.masked_fill(logits.isnan().any(1), torch.nan).float()

        return kernel


class TestFormulas(StepKernelsContract):
    kernels = Formulas()


class Nameless(Formulas):
    caught_by = "test_is_described"
    name = ""


class SubtractsTheMean(Formulas):
    caught_by = NORM

    @makes(NormParts)
    def norm(self, parts):
        kernel = super().norm(parts)
        return lambda x: kernel(x - x.mean(-1, keepdim=True))


class NormsInBfloat16(Formulas):
    caught_by = NORM

    @makes(NormParts)
    def norm(self, parts):
        kernel = super().norm(parts)
        return lambda x: kernel(x.bfloat16()).bfloat16().float()


class AnswersInFloat64(Formulas):
    caught_by = NORM

    @makes(NormParts)
    def norm(self, parts):
        kernel = super().norm(parts)
        return lambda x: kernel(x).double()


class ForgetsTheState(Formulas):
    caught_by = RULE

    @makes(DeltaRuleParts)
    def delta_rule(self, parts):
        kernel = super().delta_rule(parts)
        return lambda projected, window, matrix, rows: kernel(
            projected, window, matrix.clone(), rows
        )


class ChangesTheFirstRows(Formulas):
    caught_by = "test_delta_rule_changes_the_states_of_its_rows_only"

    @makes(DeltaRuleParts)
    def delta_rule(self, parts):
        kernel = super().delta_rule(parts)
        return lambda projected, window, matrix, rows: kernel(
            projected, window[: len(projected)], matrix[: len(projected)], None
        )


class SpreadsStates(Formulas):
    caught_by = "test_delta_rule_keeps_what_is_not_a_number_to_its_row"

    @makes(DeltaRuleParts)
    def delta_rule(self, parts):
        kernel = super().delta_rule(parts)
        return lambda projected, window, matrix, rows: (
            kernel(projected, window, matrix, rows) + 0 * projected.sum()
        )


class DoesNotKeepTheKey(Formulas):
    caught_by = ATTENTION

    @makes(AttentionParts)
    def attention(self, parts):
        kernel = super().attention(parts)

        def forgetful(projected, cos, sin, held):
            before = held.slab.clone()
            made = kernel(projected, cos, sin, held)
            held.slab.copy_(before)
            return made

        return forgetful


class RotatesTheOtherWay(Formulas):
    caught_by = ATTENTION

    @makes(AttentionParts)
    def attention(self, parts):
        kernel = super().attention(parts)
        return lambda projected, cos, sin, held: kernel(projected, cos, -sin, held)


class SharesRows(Formulas):
    caught_by = "test_attention_keeps_what_is_not_a_number_to_its_row"

    @makes(AttentionParts)
    def attention(self, parts):
        kernel = super().attention(parts)
        return lambda *args: kernel(*args) + 0 * args[0].sum()


class AddsInPlace(Formulas):
    caught_by = EXPERTS

    @makes(ExpertParts)
    def experts(self, parts):
        kernel = super().experts(parts)
        return lambda hidden: hidden.copy_(kernel(hidden))


class ForgetsTheResidual(Formulas):
    caught_by = EXPERTS

    @makes(ExpertParts)
    def experts(self, parts):
        kernel = super().experts(parts)
        return lambda hidden: kernel(hidden) - hidden


class SpreadsInfinities(Formulas):
    caught_by = "test_experts_keep_what_is_not_a_number_to_its_row"

    @makes(ExpertParts)
    def experts(self, parts):
        kernel = super().experts(parts)
        return lambda hidden: kernel(hidden) + 0 * hidden.sum()


class KeepsOldAdapters(Formulas):
    """Copies the weights, which change between calls."""

    caught_by = LOW_RANK

    @makes(LowRankParts)
    def low_rank(self, parts):
        ups = tuple(up.clone() for up in parts.ups)
        return super().low_rank(LowRankParts(down=parts.down, ups=ups, begins=parts.begins))


class AddsToAllTokens(Formulas):
    """Rounds tokens without an adapter, too."""

    caught_by = LOW_RANK

    @makes(LowRankParts)
    def low_rank(self, parts):
        kernel = super().low_rank(parts)

        def rounding(x, out, tokens):
            kernel(x, out, tokens)
            out.mul_(1 + 2**-7)

        return rounding


class LosesNaN(Formulas):
    caught_by = "test_low_rank_keeps_what_is_not_a_number_to_its_token"

    @makes(LowRankParts)
    def low_rank(self, parts):
        kernel = super().low_rank(parts)
        return lambda x, out, tokens: kernel(x.nan_to_num(), out, tokens)


class ReturnsTheLastMaximum(Formulas):
    caught_by = BEST

    @makes(BestAllowedParts)
    def best_allowed(self, parts):
        kernel = super().best_allowed(parts)

        def last(logits, masks):
            _, best = kernel(logits, masks)
            ids = [
                int((row == top).nonzero().flatten()[-1:].sum())
                for row, top in zip(logits, best, strict=True)
            ]
            return torch.tensor(ids), best

        return last


class IgnoresMasks(Formulas):
    caught_by = BEST

    @makes(BestAllowedParts)
    def best_allowed(self, parts):
        kernel = super().best_allowed(parts)
        return lambda logits, masks: kernel(logits, torch.full_like(masks, -1))


class MasksInPlace(Formulas):
    caught_by = BEST

    @makes(BestAllowedParts)
    def best_allowed(self, parts):
        kernel = super().best_allowed(parts)

        def masking(logits, masks):
            made = kernel(logits, masks)
            logits.fill_(0)
            return made

        return masking


class HidesNaN(Formulas):
    caught_by = "test_best_allowed_says_which_rows_hold_what_is_not_a_number"

    @makes(BestAllowedParts)
    def best_allowed(self, parts):
        kernel = super().best_allowed(parts)
        return lambda logits, masks: kernel(logits.nan_to_num(), masks)


BROKEN = [
    value
    for value in list(globals().values())
    if isinstance(value, type) and "caught_by" in vars(value)
]


@pytest.fixture(autouse=True)
def brief_shrinking(monkeypatch):
    """A failure counts, not its smallest example."""
    monkeypatch.setattr("hypothesis.internal.conjecture.engine.MAX_SHRINKING_SECONDS", 0.1)


@pytest.mark.nightly_after(4)
@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
@pytest.mark.broken("step_kernels")
@pytest.mark.slow
def test_broken_ones_are_caught(broken):
    suite = type("Suite", (StepKernelsContract,), {"kernels": broken()})
    assert broken.caught_by in failing_tests(suite, [broken.caught_by])
