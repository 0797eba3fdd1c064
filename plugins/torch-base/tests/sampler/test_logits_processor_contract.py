"""The suite of logits processors, over those of this distribution, a plain one, and broken ones."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch

from tenonry_testkit.logits_processor import LogitsProcessorContract
from tenonry_testkit.outcomes import failing_tests
from tenonry_torch_base.sampler.processors import LogitsProcessor

NAMED = "test_it_has_a_name_and_a_version"
ASKED = "test_only_requests_that_ask_need_it"
CHANGE = "test_logits_change_in_place"
ALONE = "test_a_row_depends_on_no_other"
SAME = "test_the_same_tokens_have_the_same_logits"
AFRESH = "test_a_row_keeps_nothing_of_the_request_before_it"
BACK = "test_a_row_that_comes_back_goes_on"
BEST = "test_the_best_token_is_that_of_the_logits"


class NoRepeats(LogitsProcessor):
    """Forbids output tokens a second time, for requests that ask."""

    name = "no_repeats"

    def __init__(self, context):
        super().__init__(context)
        self.seen = {}

    def enter(self, new):
        if not (new.sampling.extra_args or {}).get("once"):
            return False
        self.seen[new.row] = new.token_ids.tolist()
        return True

    def leave(self, row):
        del self.seen[row]

    def apply(self, logits, step):
        for place, row in enumerate(step.row.tolist()):
            logits[place, self.seen[row]] = -torch.inf

    def accept(self, row, token_ids):
        for each, token in zip(row.tolist(), token_ids.tolist(), strict=True):
            self.seen[each].append(token)


class TestNoRepeats(LogitsProcessorContract):
    logits_processor = NoRepeats
    asking: ClassVar = {"extra_args": {"once": True}}


class TestAllowedTokens(LogitsProcessorContract):
    logits_processor = "tenonry_torch_base.sampler.token_rules:AllowedTokens"
    asking: ClassVar = {"allowed_token_ids": [3, 5, 8]}


class TestPenalties(LogitsProcessorContract):
    logits_processor = "tenonry_torch_base.sampler.penalties:Penalties"
    asking: ClassVar = {"presence_penalty": 1.5, "repetition_penalty": 1.2}


class TestLogitBias(LogitsProcessorContract):
    logits_processor = "tenonry_torch_base.sampler.token_rules:LogitBias"
    asking: ClassVar = {"logit_bias": {4: 5.0, 9: -20.0}}


class NoName(NoRepeats):
    caught_by = NAMED
    name = ""


class AnswersNothing(NoRepeats):
    caught_by = ASKED

    def enter(self, new):
        super().enter(new)


class IsForAll(NoRepeats):
    caught_by = ASKED

    def enter(self, new):
        self.seen[new.row] = new.token_ids.tolist()
        return True


class AnswersOutOfPlace(NoRepeats):
    caught_by = CHANGE

    def apply(self, logits, step):
        super().apply(logits.clone(), step)


class ForbidsAll(NoRepeats):
    caught_by = CHANGE

    def apply(self, logits, step):
        logits.fill_(-torch.inf)


class MakesNaN(NoRepeats):
    caught_by = CHANGE

    def apply(self, logits, step):
        super().apply(logits, step)
        logits.sub_(logits.amin(-1, keepdim=True))


class TakesTheFirstRow(NoRepeats):
    caught_by = ALONE

    def apply(self, logits, step):
        logits[:, self.seen[int(step.row[0])]] = -torch.inf


class TakesPlacesForRows(NoRepeats):
    caught_by = ALONE

    def apply(self, logits, step):
        for place in range(len(step.row)):
            logits[place, self.seen.get(place, [])] = -torch.inf


class ScalesByTheBatch(NoRepeats):
    caught_by = ALONE

    def apply(self, logits, step):
        super().apply(logits, step)
        logits.mul_(1 / len(step.row))


class CountsCalls(NoRepeats):
    caught_by = SAME
    calls = 0

    def apply(self, logits, step):
        super().apply(logits, step)
        self.calls += 1
        logits.add_(float(self.calls))


class DrawsLots(NoRepeats):
    caught_by = SAME

    def apply(self, logits, step):
        super().apply(logits, step)
        logits.add_(torch.rand_like(logits))


class Remembers(NoRepeats):
    caught_by = AFRESH

    def enter(self, new):
        before = self.seen.get(new.row, [])
        needs = super().enter(new)
        if needs:
            self.seen[new.row] += before
        return needs

    def leave(self, row):
        pass


class ForgetsOutputs(NoRepeats):
    caught_by = BACK

    def enter(self, new):
        needs = super().enter(new)
        if needs:
            prompt = len(new.token_ids) - new.num_output
            self.seen[new.row] = new.token_ids[:prompt].tolist()
        return needs


class BestOfAll(NoRepeats):
    caught_by = BEST

    def best(self, logits, step):
        values, places = logits.max(-1)
        return places, values


class BestChanges(NoRepeats):
    caught_by = BEST

    def best(self, logits, step):
        self.apply(logits, step)
        values, places = logits.max(-1)
        return places, values


class FitsTooMuch(NoRepeats):
    caught_by = "test_drafts_fit_as_far_as_they_are_long"

    def fitting(self, row, length, token_ids):
        return len(token_ids) + 1


class PreparesOthers(NoRepeats):
    caught_by = "test_requests_are_prepared"

    def compile(self, asked, patience):
        return [*asked, 99]


class WaitsForRows(NoRepeats):
    caught_by = "test_it_shuts_down"

    def shutdown(self):
        if np.any(self.active):
            raise RuntimeError("rows still run")


BROKEN = [
    value
    for value in list(globals().values())
    if isinstance(value, type) and "caught_by" in vars(value)
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
@pytest.mark.broken("logits_processor")
def test_broken_ones_are_caught(broken):
    suite = type("Suite", (TestNoRepeats,), {"logits_processor": broken})
    assert broken.caught_by in failing_tests(suite, [broken.caught_by])


def test_every_test_of_the_suite_catches_one():
    tests = {name for name in dir(LogitsProcessorContract) if name.startswith("test_")}
    assert tests == {broken.caught_by for broken in BROKEN}
