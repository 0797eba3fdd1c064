"""An observed scheduler answers as the scheduler does, and a broken observer is dropped alone."""

from __future__ import annotations

import dataclasses
import itertools
import logging

import numpy as np
import pytest
from decision_runs import make_context

from tenonry.info import PluginRecord
from tenonry.messages import EngineCoreRequest
from tenonry.sampling_params import SamplingParams
from tenonry_decisions.attach import make_header
from tenonry_decisions.observed import MAX_EVENTS, ObservedScheduler
from tenonry_decisions.recorder import Recorder
from tenonry_decisions.virtual import VirtualEngine
from tenonry_scheduler_batching.scheduler import BatchingScheduler
from tenonry_testkit.scheduler import SchedulerContract

CALLS = ("added", "scheduled", "updated", "ended", "shutdown")


class Counting:
    """Counts calls, and raises in one of them."""

    def __init__(self, name: str, raises: str = "", *, is_immediate: bool = False) -> None:
        self.name = name
        self.is_immediate = is_immediate
        self.calls: list[str] = []
        self._raises = raises

    def _call(self, call: str) -> None:
        self.calls.append(call)
        if call == self._raises:
            raise ZeroDivisionError("on purpose")

    def added(self, request, now, key):
        self._call("added")

    def scheduled(self, output, now, free_blocks, held):
        self._call("scheduled")

    def updated(self, outputs_by_client):
        self._call("updated")

    def ended(self, requests, reason):
        self._call("ended")

    def shutdown(self):
        self._call("shutdown")


def drive(observers) -> int:
    """Two requests, one ended from outside; returns the number of steps."""
    context = make_context()
    observed = ObservedScheduler(BatchingScheduler(context), observers)
    engine = VirtualEngine(observed, context.max_model_len)
    for handle in (1, 2):
        source = EngineCoreRequest(
            handle=handle,
            request_id=str(handle),
            prompt_token_ids=np.arange(5, dtype=np.int32),
            sampling_params=SamplingParams(max_tokens=4),
        )
        engine.add(source, 0.0)
    num_steps = 0
    while engine.has_requests():
        engine.step()
        num_steps += 1
        if num_steps == 2:
            engine.end(2)
    observed.shutdown()
    return num_steps


@pytest.mark.parametrize("call", CALLS)
def test_an_observer_that_raises_is_dropped_and_named(call, caplog):
    broken, whole, reference = Counting("broken", call), Counting("whole"), Counting("reference")
    wanted = drive([reference])
    with caplog.at_level(logging.ERROR, "tenonry.decisions"):
        assert drive([broken, whole]) == wanted
    assert whole.calls == reference.calls
    assert set(whole.calls) == set(CALLS)
    assert broken.calls.count(call) == 1
    assert broken.calls[-1] == call
    assert [record.getMessage() for record in caplog.records] == [
        f"disabled broken: {call} raised ZeroDivisionError: on purpose"
    ]


def observed_request(observer, *, max_tokens=100):
    """An observed scheduler with one request, and its engine."""
    context = make_context()  # its clock advances by 1 ms per call
    observed = ObservedScheduler(BatchingScheduler(context), [observer])
    engine = VirtualEngine(observed, context.max_model_len)
    source = EngineCoreRequest(
        handle=1,
        request_id="a",
        prompt_token_ids=np.arange(5, dtype=np.int32),
        sampling_params=SamplingParams(max_tokens=max_tokens),
    )
    engine.add(source, 0.0)
    return observed, engine


def test_calls_are_passed_on_together():
    observer = Counting("late")
    observed, engine = observed_request(observer)
    engine.step()
    assert observer.calls == []
    observed.pass_on()
    assert observer.calls == ["added", "scheduled", "updated"]
    for _ in range(MAX_EVENTS):
        engine.step()
    assert 2 * MAX_EVENTS + 3 - len(observer.calls) < MAX_EVENTS


def test_an_immediate_observer_follows_each_call():
    observer = Counting("immediate", is_immediate=True)
    _, engine = observed_request(observer)
    assert observer.calls == ["added"]
    engine.step()
    assert observer.calls == ["added", "scheduled", "updated"]


@pytest.mark.parametrize("aborted", [False, True])
def test_the_end_of_the_last_request_is_passed_on_immediately(aborted):
    observer = Counting("late")
    _, engine = observed_request(observer, max_tokens=1)
    if aborted:
        engine.end(1)
        assert observer.calls == ["added", "ended"]
    else:
        engine.step()
        assert observer.calls == ["added", "scheduled", "updated"]


def test_slow_steps_are_passed_on_one_by_one():
    now = itertools.count()
    context = dataclasses.replace(make_context(), clock=lambda: float(next(now)))
    observer = Counting("late")
    observed = ObservedScheduler(BatchingScheduler(context), [observer])
    observed.schedule()
    assert observer.calls == ["scheduled"]


def test_what_the_scheduler_raises_passes():
    class Failing(BatchingScheduler):
        def choose(self, step):
            raise KeyError("mine")

    observer = Counting("whole")
    observed = ObservedScheduler(Failing(make_context()), [observer])
    with pytest.raises(KeyError, match="mine"):
        observed.schedule()
    assert observer.calls == []


class RecordedScheduler(ObservedScheduler):
    """`batching` with its decisions recorded."""

    Options = BatchingScheduler.Options

    def __init__(self, context):
        scheduler = BatchingScheduler(context)
        header = make_header(context, PluginRecord("scheduler", "batching", ""), "live")
        super().__init__(scheduler, [Recorder(header, scheduler, [lambda chunk: None])])


@pytest.mark.nightly
class TestRecordedScheduler(SchedulerContract):
    scheduler = RecordedScheduler
    effort = 0.1
