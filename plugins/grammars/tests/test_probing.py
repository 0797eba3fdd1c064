"""A specification is followed for some tokens, past none that end the output."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tenonry.sampling_params import StructuredOutput
from tenonry_grammars.base import Grammar, GrammarBackend, GrammarContext, GrammarError, Matcher
from tenonry_grammars.bits import I32, NOTHING, allow
from tenonry_grammars.probing import TOKENS_PER_WALK, WALKS, check_spec

END = 40
SPEC = StructuredOutput(choice=("x",))


class ScriptedMatcher(Matcher):
    """Allows at each place the tokens of a script, and the end id where it says so."""

    def __init__(self, log: list[int]) -> None:
        self.place = 0
        self._log = log

    def accept(self, token_ids: Sequence[int]) -> int:
        self._log.extend(token_ids)
        self.place += len(token_ids)
        return len(token_ids)

    def rollback(self, count: int) -> None:
        self.place -= count


class ScriptedBackend(GrammarBackend):
    """One grammar, whose tokens are allowed by their place; beyond the script, nothing is."""

    def __init__(self, script: list[set[int]], end_ids: tuple[int, ...] = (END,)) -> None:
        super().__init__(GrammarContext("{}", 64, end_ids))
        self._script = script
        self.taken: list[int] = []

    def compile(self, spec: StructuredOutput) -> Grammar:
        backend = self

        class Scripted(Grammar):
            def matcher(self, end_ids: Sequence[int]) -> Matcher:
                return ScriptedMatcher(backend.taken)

        return Scripted()

    def fill_masks(self, matchers: Sequence[Matcher], out: I32) -> None:
        out[:] = NOTHING
        for line, matcher in enumerate(matchers):
            assert isinstance(matcher, ScriptedMatcher)
            if matcher.place < len(self._script):
                allow(out[line], self._script[matcher.place])


def test_it_walks_until_only_the_end_is_left():
    backend = ScriptedBackend([{3}, {5, END}, {END}])
    check_spec(backend, SPEC)
    assert backend.taken == [3, 5] * WALKS


def test_it_walks_no_further_than_its_bound_and_takes_other_ways():
    backend = ScriptedBackend([{1, 2, 33, 63}] * 2 * TOKENS_PER_WALK)
    check_spec(backend, SPEC)
    assert len(backend.taken) == WALKS * TOKENS_PER_WALK
    assert set(backend.taken) == {1, 2, 33, 63}


def test_an_end_id_that_the_model_has_no_logit_for_is_none_that_a_mask_allows():
    backend = ScriptedBackend([{3}, {END}], end_ids=(END, 64))
    check_spec(backend, SPEC)
    assert backend.taken == [3] * WALKS


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ([], "nothing satisfies it: after 0 tokens"),
        ([{3}], "too complex to follow; .* after 1 tokens"),
    ],
)
def test_what_leads_nowhere_is_refused(script, words):
    with pytest.raises(GrammarError, match=words):
        check_spec(ScriptedBackend(script), SPEC)
