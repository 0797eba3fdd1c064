"""The conformance suite of step observers: each line of their contract is a test. Test process.

from tenonry_testkit.step_observer import StepObserverContract

class TestMine(StepObserverContract):
    step_observer = "my_package:MyObserver"
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest

from tenonry.config import EngineConfig
from tenonry.interfaces.scheduler import SchedulerContext
from tenonry.interfaces.step_observer import StepObserver
from tenonry.plugin.kinds import STEP_OBSERVERS
from tenonry.step import ModelRunnerOutput, NewRow, SchedulerOutput
from tenonry_testkit.fakes.scheduler import ReferenceScheduler
from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.targets import resolve_target

DEPTHS = [1, 2, 3]


class Relay:
    """Replaces the validator in the harness: passes each call on to observers, and detects changes."""

    def __init__(self, observers: Sequence[StepObserver]) -> None:
        self._observers = observers
        self.answers: list[object] = []
        self.changes: list[str] = []

    def added(self, request: NewRow) -> None:
        self._pass_on("added", request)

    def ended(self, handle: int) -> None:
        self._pass_on("ended", handle)

    def scheduled(self, output: SchedulerOutput) -> None:
        self._pass_on("scheduled", output)

    def answered(self, result: ModelRunnerOutput) -> None:
        self._pass_on("answered", result)

    def _pass_on(self, call: str, value: Any) -> None:
        before = _frozen(value)
        for observer in self._observers:
            self.answers.append(getattr(observer, call)(value))
            if _frozen(value) != before:
                self.changes.append(call)


class StepObserverContract:
    """Subclass in a test module and name the `step_observer`; `config` holds further fields of EngineConfig."""

    step_observer: ClassVar[str | type[StepObserver] | None] = None
    config: ClassVar[dict[str, Any]] = {}

    # ------------------------------------------------------------------ tools, for tests of your own
    def build(self, context: SchedulerContext) -> StepObserver:
        """Build a fresh observer with a copy of the scheduler's context, like engines."""
        cls, options, _ = resolve_target(STEP_OBSERVERS, self.step_observer)
        made: StepObserver = cls(dataclasses.replace(context, options=options))
        return made

    def harness(self, depth: int = 1) -> SchedulerHarness:
        """Return an engine with a correct scheduler and this number of steps in flight; prompts run in parts."""
        spec = HarnessSpec(
            depth=depth, max_num_seqs=3, max_num_batched_tokens=6, config=tuple(self.config.items())
        )
        return SchedulerHarness(ReferenceScheduler, spec)

    def follow(self, harness: SchedulerHarness, *observers: StepObserver) -> Relay:
        """Run observed requests to their ends: some wait, one runs in parts, two are aborted, all preempted."""
        relay = Relay(observers)
        harness.validator = relay  # type: ignore[assignment]
        waiting = [harness.add([number + 1] * (3 + number), 5) for number in range(5)]
        harness.add(range(1, 20), 3)  # longer than a step
        harness.turn()
        harness.abort([waiting[4].handle])  # it never ran
        harness.turn()
        harness.abort([waiting[0].handle])
        harness.reset_prefix_cache(reset_running_requests=True)
        harness.drain()
        return relay

    # ------------------------------------------------------------------ the contract
    def test_it_is_an_observer_that_the_kernel_accepts(self) -> None:
        """It resolves, implements the interface in a version that the kernel drives, and can be built."""
        assert isinstance(self.build(self.harness().scheduler.context), StepObserver)

    def test_it_tells_whether_it_observes(self) -> None:
        """The result is True or False, by the configuration alone."""
        cls, _, _ = resolve_target(STEP_OBSERVERS, self.step_observer)
        config = EngineConfig(model="fake", **self.config)
        answers = [cls.observes(config) for _ in range(2)]
        assert answers in ([True, True], [False, False]), f"observes returned {answers}"

    @pytest.mark.parametrize("depth", DEPTHS)
    def test_it_accepts_all_that_a_right_scheduler_does(self, depth: int) -> None:
        """Steps in flight, prompts in parts, preemption, and requests that end before they run."""
        harness = self.harness(depth)
        self.follow(harness, self.build(harness.scheduler.context))

    def test_it_answers_nothing(self) -> None:
        """Results are ignored."""
        harness = self.harness()
        answers = self.follow(harness, self.build(harness.scheduler.context)).answers
        assert {answer for answer in answers if answer is not None} == set()

    def test_it_changes_nothing(self) -> None:
        """Neither requests nor steps nor results."""
        harness = self.harness(2)
        assert self.follow(harness, self.build(harness.scheduler.context)).changes == []

    def test_each_engine_has_its_own(self) -> None:
        """Two observers in one process share no state."""
        for _ in range(2):
            harness = self.harness(2)
            context = harness.scheduler.context
            self.follow(harness, self.build(context), self.build(context))


def _frozen(value: object) -> bytes:
    def plain(each: Any) -> Any:
        if isinstance(each, np.ndarray):
            return [str(each.dtype), list(each.shape), each.tobytes()]
        return repr(each)

    return msgspec.msgpack.encode(value, enc_hook=plain)
