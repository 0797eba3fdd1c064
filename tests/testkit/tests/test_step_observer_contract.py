"""The suite of step observers, over those that are right and over broken ones."""

from __future__ import annotations

from typing import ClassVar

import pytest

from tenonry.interfaces.step_observer import StepObserver
from tenonry_testkit.outcomes import failing_tests
from tenonry_testkit.step_observer import StepObserverContract


class Counter(StepObserver):
    """Counts the tokens of steps whose result it has not seen."""

    def __init__(self, context):
        super().__init__(context)
        self.tokens = {}

    def scheduled(self, output):
        self.tokens[output.step_id] = output.total_tokens

    def answered(self, result):
        del self.tokens[result.step_id]


class TestCounter(StepObserverContract):
    step_observer = Counter


class TestValidator(StepObserverContract):
    step_observer = "validator"


class TestValidatorThatIsOff(StepObserverContract):
    step_observer = "validator"
    config: ClassVar = {"validate_scheduler": False}


class ObservesPerhaps(StepObserver):
    @classmethod
    def observes(cls, config):
        return None


class AnswersByTurns(StepObserver):
    turns: ClassVar[list[bool]] = []

    @classmethod
    def observes(cls, config):
        cls.turns.append(True)
        return len(cls.turns) % 2 == 1


class ExpectsThatEachRequestRan(StepObserver):
    def __init__(self, context):
        super().__init__(context)
        self.ran = set()

    def scheduled(self, output):
        self.ran.update(new.handle for new in output.new)

    def ended(self, handle):
        self.ran.remove(handle)


class ExpectsOneStepInFlight(StepObserver):
    def __init__(self, context):
        super().__init__(context)
        self.in_flight = 0

    def scheduled(self, output):
        self.in_flight += 1
        if self.in_flight > 1:
            raise RuntimeError("two steps")

    def answered(self, result):
        self.in_flight -= 1


class ExpectsWholePrompts(StepObserver):
    def scheduled(self, output):
        if not output.samples.all():
            raise RuntimeError("a prompt in parts")


class ReturnsTokens(StepObserver):
    def scheduled(self, output):
        return output.total_tokens


class ChangesTokens(StepObserver):
    def answered(self, result):
        result.token_ids[:] = result.token_ids[::-1].copy()
        result.step_id += 1000


class ChangesRequests(StepObserver):
    def added(self, request):
        request.token_ids.setflags(write=True)
        request.token_ids[0] += 1


class SharesHandles(StepObserver):
    handles: ClassVar[set[int]] = set()

    def added(self, request):
        if request.handle in self.handles:
            raise RuntimeError("a handle twice")
        self.handles.add(request.handle)


class NoObserver:
    def __init__(self, context):
        pass


BROKEN = {
    NoObserver: "test_it_is_an_observer_that_the_kernel_accepts",
    ObservesPerhaps: "test_it_tells_whether_it_observes",
    AnswersByTurns: "test_it_tells_whether_it_observes",
    ExpectsThatEachRequestRan: "test_it_accepts_all_that_a_right_scheduler_does",
    ExpectsOneStepInFlight: "test_it_accepts_all_that_a_right_scheduler_does",
    ExpectsWholePrompts: "test_it_accepts_all_that_a_right_scheduler_does",
    ReturnsTokens: "test_it_answers_nothing",
    ChangesTokens: "test_it_changes_nothing",
    ChangesRequests: "test_it_changes_nothing",
    SharesHandles: "test_each_engine_has_its_own",
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
@pytest.mark.broken("step_observer")
def test_broken_ones_are_caught(broken):
    for state in ("turns", "handles"):
        getattr(broken, state, set()).clear()
    suite = type("Suite", (StepObserverContract,), {"step_observer": broken})
    assert BROKEN[broken] in failing_tests(suite, [BROKEN[broken]])


def test_every_test_of_the_suite_catches_one():
    tests = {name for name in dir(StepObserverContract) if name.startswith("test_")}
    assert tests == set(BROKEN.values())
