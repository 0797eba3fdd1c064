"""The suite of load balancers, over the fake and over broken ones."""

from __future__ import annotations

import random
import time
from typing import ClassVar

import pytest
from hypothesis import Phase

from tenonry_testkit.fakes.load_balancer import TurnsBalancer
from tenonry_testkit.load_balancer import LoadBalancerContract
from tenonry_testkit.outcomes import failing_tests

PHASES = (Phase.explicit, Phase.generate)  # what fails needs not be made small


class TestTurns(LoadBalancerContract):
    load_balancer = TurnsBalancer


class TestByName(LoadBalancerContract):
    load_balancer = "tenonry_testkit.fakes.load_balancer:TurnsBalancer"
    effort = 0.1


class FirstUnlessBusy(TurnsBalancer):
    """Prefers the first engine until it has a load of ten."""

    def pick(self, request, candidates, load):
        if load(candidates[0]) < 10:
            return candidates[0]
        return super().pick(request, candidates, load)


class TestUnfairOnPurpose(LoadBalancerContract):
    load_balancer = FirstUnlessBusy
    fair = False


class AnswersWithThePlace(TurnsBalancer):
    caught_by = "test_it_picks_a_candidate"

    def pick(self, request, candidates, load):
        return candidates.index(super().pick(request, candidates, load))


class GoesHome(TurnsBalancer):
    caught_by = "test_engines_leave_and_join"

    def __init__(self, context):
        super().__init__(context)
        self._homes = {}

    def pick(self, request, candidates, load):
        key = request.prompt_token_ids.tobytes()
        return self._homes.setdefault(key, super().pick(request, candidates, load))


class NeedsTwo(TurnsBalancer):
    caught_by = "test_a_single_candidate_is_picked"

    def pick(self, request, candidates, load):
        left, right = random.Random(request.handle).sample(candidates, 2)
        return left if load(left) < load(right) else right


class IgnoresTheSeed(TurnsBalancer):
    caught_by = "test_the_same_seed_and_calls_give_the_same_picks"

    def pick(self, request, candidates, load):
        return random.SystemRandom().choice(candidates)


class SharesItsTurn(TurnsBalancer):
    caught_by = "test_two_do_not_share_what_they_remember"
    turns: ClassVar = [0]

    def pick(self, request, candidates, load):
        self.turns[0] += 1
        return candidates[self.turns[0] % len(candidates)]


class LovesTheFirst(TurnsBalancer):
    caught_by = "test_unrelated_requests_spread_over_idle_engines"

    def pick(self, request, candidates, load):
        return min(candidates, key=load)


class SaltsTheCache(TurnsBalancer):
    caught_by = "test_requests_are_not_changed"

    def pick(self, request, candidates, load):
        request.cache_salt = "mine"
        return super().pick(request, candidates, load)


class TurnsWithTheClock(TurnsBalancer):
    caught_by = "test_the_wall_clock_is_not_read"

    def pick(self, request, candidates, load):
        return candidates[int(time.monotonic() / 3600) % len(candidates)]


BROKEN = [
    AnswersWithThePlace,
    GoesHome,
    NeedsTwo,
    IgnoresTheSeed,
    SharesItsTurn,
    LovesTheFirst,
    SaltsTheCache,
    TurnsWithTheClock,
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda cls: cls.__name__)
@pytest.mark.broken("load_balancer")
def test_a_broken_one_is_caught_by_the_test_that_names_the_rule(broken):
    suite = type("Suite", (LoadBalancerContract,), {"load_balancer": broken, "phases": PHASES})
    assert broken.caught_by in failing_tests(suite, [broken.caught_by])
