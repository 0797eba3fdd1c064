"""The suite of grammar backends detects defects, each by the test that names it."""

from __future__ import annotations

import numpy as np
import pytest

from tenonry_grammar_llguidance.backend import LLGrammar, LLGuidance, LLMatcher
from tenonry_grammars.base import GrammarError
from tenonry_grammars.bits import allow
from tenonry_testkit.fakes.tokenizer import END
from tenonry_testkit.grammar import GrammarContract
from tenonry_testkit.outcomes import failing_tests
from tenonry_testkit.tiers import nightly_unless


class WithMatcher(LLGuidance):
    """As the original, with matchers of another class."""

    matcher_class: type = LLMatcher

    def compile(self, spec):
        compiled = super().compile(spec)
        matcher_class = self.matcher_class

        class Changed(LLGrammar):
            def matcher(self, end_ids):
                inner = compiled.matcher(end_ids)
                return matcher_class(compiled, inner.inner, inner.own_ends)

        return Changed(None, self.context)


class AlwaysEnds(LLGuidance):
    caught_by = "test_the_end_is_allowed_where_the_text_is_complete_and_only_there"

    def fill_masks(self, matchers, out):
        super().fill_masks(matchers, out)
        for line in out:
            allow(line, [END])


class NeverEnds(LLGuidance):
    caught_by = "test_after_the_end_nothing_but_end_ids"

    def fill_masks(self, matchers, out):
        super().fill_masks(matchers, out)
        for line in out.view(np.uint32):
            line[END // 32] &= ~np.uint32(1 << END % 32)


class ForgetsToRollBack(WithMatcher):
    caught_by = "test_rollback_takes_tokens_back"

    class matcher_class(LLMatcher):
        def rollback(self, count):
            pass


class TakesWrongTokens(WithMatcher):
    caught_by = "test_accept_stops_before_the_first_wrong_token"

    class matcher_class(LLMatcher):
        def accept(self, token_ids):
            super().accept(token_ids)
            return len(token_ids)


class TakesOneToken(WithMatcher):
    caught_by = "test_what_was_taken_at_once_is_what_was_taken_one_by_one"

    class matcher_class(LLMatcher):
        def accept(self, token_ids):
            return super().accept(token_ids[:1])


class SharesOneMatcher(LLGuidance):
    caught_by = "test_matchers_of_one_grammar_do_not_know_each_other"

    def compile(self, spec):
        compiled = super().compile(spec)
        only = compiled.matcher(self.context.end_ids)
        compiled.matcher = lambda _: only  # LLGrammar has no slots
        return compiled


class MixesLines(LLGuidance):
    caught_by = "test_many_masks_are_those_of_each"

    def fill_masks(self, matchers, out):
        super().fill_masks(matchers, out)
        out[:] = out[::-1].copy()


class AllowsUnknownIds(LLGuidance):
    caught_by = "test_ids_that_the_tokenizer_lacks_are_never_allowed"

    def fill_masks(self, matchers, out):
        super().fill_masks(matchers, out)
        for line in out:
            allow(line, [self.context.vocab_size - 1])


class KnowsOneEndId(WithMatcher):
    caught_by = "test_a_request_has_end_ids_of_its_own"

    class matcher_class(LLMatcher):
        def __init__(self, grammar, inner, own_ends):
            super().__init__(grammar, inner, None)


class AddsToTheMask(LLGuidance):
    caught_by = "test_every_way_to_an_end_is_right"

    def fill_masks(self, matchers, out):
        before = out.copy()
        super().fill_masks(matchers, out)
        out |= before & 0x1F


class RefusesNothing(LLGuidance):
    caught_by = "test_what_cannot_be_compiled_is_refused"

    def compile(self, spec):
        try:
            return super().compile(spec)
        except GrammarError:
            return super().compile(type(spec)(json="{}"))


class FailsWithAnother(LLGuidance):
    caught_by = "test_a_tokenizer_that_cannot_be_read_is_refused"

    def _load_tokenizer(self):
        try:
            return super()._load_tokenizer()
        except GrammarError as error:
            raise RuntimeError(str(error)) from None


class EncodesSpecialTokens(LLGuidance):
    caught_by = "test_text_is_never_a_special_token"

    def _load_tokenizer(self):
        tokenizer, special_ids = super()._load_tokenizer()
        original = self.context.tokenizer_json
        load = type(tokenizer)
        return load(original, n_vocab=tokenizer.vocab_size, eos_token=END), special_ids


class EncodesChangedText(EncodesSpecialTokens):
    caught_by = "test_text_stays_as_given_where_the_tokenizer_changes_texts"


BROKEN = (
    AlwaysEnds, NeverEnds, ForgetsToRollBack, TakesWrongTokens, TakesOneToken, SharesOneMatcher, MixesLines,
    AllowsUnknownIds, KnowsOneEndId, AddsToTheMask, RefusesNothing, FailsWithAnother,
    EncodesSpecialTokens, EncodesChangedText,
)  # fmt: skip


@pytest.mark.parametrize(
    "broken",
    nightly_unless(lambda broken: BROKEN.index(broken) % 4 == 0, BROKEN),
    ids=lambda one: one.__name__,
)
@pytest.mark.slow
@pytest.mark.broken("grammar")
def test_a_broken_backend_is_found(broken):
    suite = type("Suite", (GrammarContract,), {"backend": broken})
    found = failing_tests(suite)
    assert any(name.startswith(broken.caught_by) for name in found), found


def test_the_original_passes():
    suite = type("Suite", (GrammarContract,), {"backend": LLGuidance})
    assert failing_tests(suite) == {}


def test_a_suite_that_names_nothing_says_so():
    with pytest.raises(TypeError, match="add the line"):
        GrammarContract().open()
