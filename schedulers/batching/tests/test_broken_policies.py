"""The suite detects scheduling policies with one defect each, by the test that must name it."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import Phase

from tenonry_scheduler_batching import SchedulingPolicy
from tenonry_scheduler_batching.scheduler import BatchingScheduler
from tenonry_testkit.outcomes import failing_tests
from tenonry_testkit.scheduler import SchedulerContract

ACCEPTED = "test_it_is_a_scheduler_that_the_kernel_accepts"
ENDS = "test_every_request_ends_exactly_once"
STARVES = "test_no_request_starves"
DECIDES = "test_same_calls_give_the_same_decisions"
PREEMPTS = "test_preemption_changes_no_token"


class PrefersTheUrgent(SchedulingPolicy):
    caught_by = STARVES

    def order(self, request):
        return request.priority


class PrefersTheShort(SchedulingPolicy):
    caught_by = STARVES

    def order(self, request):
        return request.num_tokens


class PrefersTheLast(SchedulingPolicy):
    caught_by = STARVES

    def order(self, request):
        return -request.arrival


class AdmitsNobody(SchedulingPolicy):
    caught_by = ENDS

    def admit(self, request, state):
        return False


class WaitsForRoom(SchedulingPolicy):
    """A pool may be smaller."""

    caught_by = ENDS

    def admit(self, request, state):
        return state.free_blocks > 30


class NeedsCompany(SchedulingPolicy):
    caught_by = ENDS

    def admit(self, request, state):
        return state.num_running > 0


class NeedsATag(SchedulingPolicy):
    caught_by = ENDS

    def order(self, request):
        return request.tags["deadline"]


class ComparesWhatCannotBe(SchedulingPolicy):
    caught_by = ENDS

    def order(self, request):
        return complex(request.arrival)


class PicksNobody(SchedulingPolicy):
    caught_by = PREEMPTS

    def victim(self, running):
        return None


class PicksOneThatWaits(SchedulingPolicy):
    """The request that came last, whether it runs or not."""

    caught_by = PREEMPTS

    def order(self, request):
        self.last = request
        return request.arrival

    def victim(self, running):
        return self.last


class ShortensRequests(SchedulingPolicy):
    caught_by = ENDS

    def order(self, request):
        request.max_total_tokens = min(request.max_total_tokens, request.num_tokens + 1)
        return request.arrival


class ReadsTheClock(SchedulingPolicy):
    caught_by = "test_the_wall_clock_is_not_read"

    def order(self, request):
        return time.monotonic()


class DrawsLots(SchedulingPolicy):
    caught_by = DECIDES

    def victim(self, running):
        return random.choice(running)


class GoesByAddress(SchedulingPolicy):
    caught_by = DECIDES
    starvation_free = False

    def order(self, request):
        return id(request)


class GoesByName(SchedulingPolicy):
    caught_by = DECIDES
    starvation_free = False

    def order(self, request):
        return request.request_id


class IsNoPolicy(SchedulingPolicy):
    """A base class that needs an argument."""

    caught_by = ACCEPTED

    def __init__(self, options, weights):
        super().__init__(options)
        self.weights = weights


BROKEN = [
    value
    for value in list(globals().values())
    if isinstance(value, type) and "caught_by" in vars(value)
]


@pytest.mark.nightly_after(5)
@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
@pytest.mark.broken("scheduling_policy")
@pytest.mark.slow
def test_defect_is_found_by_the_test_that_names_it(broken):
    fields = {
        "scheduler": BatchingScheduler,
        "policy": f"{Path(__file__)}:{broken.__name__}",
        "phases": (Phase.generate,),
        "effort": 0.3,
    }
    suite = type("Suite", (SchedulerContract,), fields)
    assert broken.caught_by in failing_tests(suite, [broken.caught_by])


def test_there_are_many_kinds_of_defect():
    assert len(Counter(broken.caught_by for broken in BROKEN)) >= 6
