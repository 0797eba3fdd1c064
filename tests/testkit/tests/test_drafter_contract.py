"""The suite of drafters passes correct ones, and detects defects by the test that names them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tenonry_drafters.base import Drafter
from tenonry_drafters.ngram import NgramDrafter
from tenonry_testkit.drafter import DrafterContract
from tenonry_testkit.outcomes import failing_tests

SHAPE = "test_guesses_are_few_enough_and_in_the_vocabulary"
OTHERS = "test_a_row_depends_on_no_other"
FORMER = "test_a_row_that_is_filled_anew_knows_nothing_of_the_former"


class Silent(Drafter):
    def propose(self, rows, histories, most):
        return [np.array([], np.int32) for _ in rows]


class GuessesTooMuch(NgramDrafter):
    caught_by = SHAPE

    def propose(self, rows, histories, most):
        return super().propose(rows, histories, [count + 1 for count in most])


class LeavesTheVocabulary(Drafter):
    caught_by = SHAPE

    def propose(self, rows, histories, most):
        return [np.array([int(history[-1]) + 1], np.int32) for history in histories]


class AnswersForOneRow(NgramDrafter):
    caught_by = OTHERS

    def propose(self, rows, histories, most):
        return super().propose(rows, histories, most)[:1]


class WritesIntoHistories(NgramDrafter):
    caught_by = SHAPE

    def propose(self, rows, histories, most):
        for history in histories:
            history[0] = 0
        return super().propose(rows, histories, most)


class MakesTables(NgramDrafter):
    caught_by = SHAPE

    def propose(self, rows, histories, most):
        return [ids[None] for ids in super().propose(rows, histories, most)]


class MakesFloats(NgramDrafter):
    caught_by = SHAPE

    def propose(self, rows, histories, most):
        return [ids.astype(float) for ids in super().propose(rows, histories, most)]


class NeedsTwoTokens(NgramDrafter):
    caught_by = "test_a_history_of_one_token_is_enough"

    def propose(self, rows, histories, most):
        assert all(history[-2] >= 0 for history in histories)
        return super().propose(rows, histories, most)


class RollsDice(Drafter):
    caught_by = "test_the_same_calls_give_the_same_guesses"

    def propose(self, rows, histories, most):
        return [np.array([random.SystemRandom().randrange(50)], np.int32) for _ in rows]


class LooksAtNeighbours(NgramDrafter):
    caught_by = OTHERS

    def propose(self, rows, histories, most):
        longest = max(histories, key=len)
        return super().propose(rows, [longest] * len(rows), most)


class RemembersTheRow(NgramDrafter):
    """Appends each history to the row's earlier text, and never forgets."""

    caught_by = FORMER

    def __init__(self, context):
        super().__init__(context)
        self.first = {}

    def propose(self, rows, histories, most):
        return [
            np.array([self.first.setdefault(row, int(history[0]))], np.int32)
            for row, history in zip(rows, histories, strict=True)
        ]


class CountsWhatItIsTold(NgramDrafter):
    """Believes that all tokens of a row are its own guesses."""

    caught_by = "test_rows_may_come_back_and_go_on_unasked"

    def __init__(self, context):
        super().__init__(context)
        self.length = {}

    def enter(self, new):
        self.length[new.row] = len(new.token_ids)

    def propose(self, rows, histories, most):
        for row, history in zip(rows, histories, strict=True):
            if len(history) != self.length[row]:
                raise ValueError("a token came from elsewhere")
        return [np.array([], np.int32) for _ in rows]


BROKEN = [
    GuessesTooMuch,
    LeavesTheVocabulary,
    AnswersForOneRow,
    WritesIntoHistories,
    MakesTables,
    MakesFloats,
    NeedsTwoTokens,
    RollsDice,
    LooksAtNeighbours,
    RemembersTheRow,
    CountsWhatItIsTold,
]


def suite_of(drafter_class):
    return type("Suite", (DrafterContract,), {"drafter": drafter_class})


@pytest.mark.parametrize("drafter_class", [Silent, NgramDrafter], ids=lambda each: each.__name__)
def test_a_right_one_passes(drafter_class):
    assert failing_tests(suite_of(drafter_class)) == {}


@pytest.mark.parametrize("drafter_class", BROKEN, ids=lambda each: each.__name__)
@pytest.mark.broken("drafter")
def test_a_broken_one_fails_by_name(drafter_class):
    assert drafter_class.caught_by in failing_tests(suite_of(drafter_class))


def test_a_suite_that_names_nothing_says_what_to_add():
    failures = failing_tests(DrafterContract, ["test_it_can_be_built_from_its_name"])
    assert "drafter = " in str(failures["test_it_can_be_built_from_its_name"])
