"""The suite detects schedulers that treat their policies wrongly, by the test that must name it."""

from __future__ import annotations

import dataclasses

import pytest

from tenonry.errors import PluginFault
from tenonry_scheduler_batching.scheduler import BatchingScheduler
from tenonry_testkit.outcomes import failing_tests
from tenonry_testkit.rules import RuleBroken
from tenonry_testkit.scheduler import SchedulerContract


class ChecksNothing(BatchingScheduler):
    """The constructor alone rejects an invalid policy."""

    caught_by = "test_a_configuration_is_checked_before_the_start"

    @classmethod
    def check(cls, config, options):
        pass


class ChoosesTheVictim(BatchingScheduler):
    caught_by = "test_one_method_makes_a_policy"

    def victim(self, running):
        return running[-1]


class AdmitsAll(BatchingScheduler):
    caught_by = "test_one_method_makes_a_policy"

    def _admits(self, request, step):
        return True


class HoldsWithoutAReason(BatchingScheduler):
    """`held` does not say that a request waits for the policy."""

    caught_by = "test_one_method_makes_a_policy"

    def _admits(self, request, step):
        is_admitted = super()._admits(request, step)
        self.held.pop(request.handle, None)
        return is_admitted


class HoldsWhatRuns(BatchingScheduler):
    """`held` names admitted requests, too."""

    caught_by = "test_one_method_makes_a_policy"

    def _admits(self, request, step):
        is_admitted = super()._admits(request, step)
        self.held[request.handle] = self._policy_name
        return is_admitted


class FindsThePolicyItself(BatchingScheduler):
    caught_by = "test_a_configuration_is_checked_before_the_start"

    def __init__(self, context):
        super().__init__(dataclasses.replace(context, resolve=None))


class WaitsForTheBatch(BatchingScheduler):
    """Starts requests in an empty engine only."""

    caught_by = "test_requests_start_beside_running_ones"

    def _admits(self, request, step):
        return super()._admits(request, step) and step.num_running == len(self._started)

    def choose(self, step):
        self._started = []
        super().choose(step)

    def started(self, request, row, num_computed, now):
        super().started(request, row, num_computed, now)
        self._started.append(row)


class StartsOneByOne(BatchingScheduler):
    """Starts one request in each step."""

    caught_by = "test_requests_start_beside_running_ones"

    def _admits(self, request, step):
        return super()._admits(request, step) and not self._started

    def choose(self, step):
        self._started = False
        super().choose(step)

    def started(self, request, row, num_computed, now):
        super().started(request, row, num_computed, now)
        self._started = True


class BlamesNobody(BatchingScheduler):
    """An exception in `order` counts as one of the scheduler."""

    caught_by = "test_a_failing_policy_is_named"

    def order(self, request):
        try:
            return super().order(request)
        except PluginFault as fault:
            raise fault.__cause__ from None


class DoesWithoutAnOrder(BatchingScheduler):
    """An exception in `order` has no effect."""

    caught_by = "test_a_failing_policy_is_named"

    def order(self, request):
        try:
            return super().order(request)
        except Exception:
            return request.arrival


BROKEN = [
    value
    for value in list(globals().values())
    if isinstance(value, type) and "caught_by" in vars(value)
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
@pytest.mark.broken("scheduler")
@pytest.mark.slow
def test_defect_is_found_by_the_test_that_names_it(broken):
    """The failure is a rule that was broken, not an accident."""
    suite = type(
        "Suite",
        (SchedulerContract,),
        {"scheduler": broken, "policy": "fcfs", "is_continuous": True},
    )
    failures = failing_tests(suite, [broken.caught_by])
    assert broken.caught_by in failures, f"{broken.__name__} passed"
    assert isinstance(failures[broken.caught_by], RuleBroken), failures
