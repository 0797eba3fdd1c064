"""The suites of executors, stat loggers and IO processors, over the fakes and over broken ones."""

from __future__ import annotations

import os
import queue
import sqlite3
import sys
from typing import ClassVar

import pytest
from hypothesis import Phase

from tenonry.interfaces.io_processor import TextPrompt
from tenonry.interfaces.stat_logger import StatLogger
from tenonry.step import ModelRunnerOutput
from tenonry_testkit.executor import ExecutorContract
from tenonry_testkit.fakes import (
    ByteIOProcessor,
    InstantExecutor,
    NoFeedbackExecutor,
    RecordingStatLogger,
)
from tenonry_testkit.fakes.io_processor import ByteDetokenizer
from tenonry_testkit.io_processor import IOProcessorContract
from tenonry_testkit.outcomes import failing_tests
from tenonry_testkit.processes import children_killed
from tenonry_testkit.stat_logger import StatLoggerContract
from tenonry_testkit.targets import resolve_target


# ----------------------------------------------------------------------------------------------------------- executors
class TestInstant(ExecutorContract):
    executor = InstantExecutor


class TestLate(ExecutorContract):
    executor = "tenonry_testkit.fakes.executor:InstantExecutor"
    options: ClassVar = {"depth": 3, "late": True}


class TestNoFeedback(ExecutorContract):
    executor = NoFeedbackExecutor
    options: ClassVar = {"depth": 2}


class SwallowsErrors(InstantExecutor):
    caught_by = "test_an_error_in_a_step_reaches_its_result"

    def execute_model(self, output):
        future = super().execute_model(output)
        future._error, future._value = (
            None,
            future._value or ModelRunnerOutput(step_id=output.step_id),
        )
        return future


class AnswersOutOfOrder(InstantExecutor):
    caught_by = "test_futures_resolve_in_step_order"
    max_concurrent_batches = 2

    def _run_until(self, wanted):
        self._queue.remove(wanted)
        if wanted._output.step_id % 2:
            wanted.execute(self.worker)
        else:
            wanted._run = lambda future: future.execute(self.worker)


class CallsAnything(InstantExecutor):
    caught_by = "test_calls_are_limited_to_the_allow_list"

    def call(self, method, args=(), timeout=None, kwargs=None):
        return [getattr(self.worker, method, print)(*args)]


class DropsFailedRows(InstantExecutor):
    caught_by = "test_failed_rows_are_handed_on"

    def execute_model(self, output):
        future = super().execute_model(output)
        result = future.result()
        result.failed_row = result.failed_code = result.row[:0]
        return future


class LosesLogProbabilities(InstantExecutor):
    caught_by = "test_tokens_are_right_with_all_its_steps_in_flight"

    def execute_model(self, output):
        future = super().execute_model(output)
        future.result().logprobs = None
        return future


class ReturnsOneResultPerCall(InstantExecutor):
    caught_by = "test_calls_reach_every_rank"

    def call(self, *args, **kwargs):
        return super().call(*args, **kwargs)[0]


class ForgetsAProcess(InstantExecutor):
    caught_by = "test_shutdown_leaves_no_process"

    def start(self):
        super().start()
        command = [sys.executable, "-c", "import time; time.sleep(7)"]
        os.spawnv(os.P_NOWAIT, sys.executable, command)


class SkipsEmptySteps(InstantExecutor):
    caught_by = "test_an_empty_step_is_answered"

    def execute_model(self, output):
        return super().execute_model(output) if len(output.row) else None


# --------------------------------------------------------------------------------------------------------- stat loggers
class TestRecording(StatLoggerContract):
    stat_logger = RecordingStatLogger


class Divides(StatLogger):
    caught_by = "test_a_record_may_hold_nothing"

    def record(self, record):
        if record.scheduler is not None:
            self.rate = record.scheduler.prefix_cache_hits / record.scheduler.prefix_cache_queries


class KnowsAllTags(StatLogger):
    caught_by = "test_any_record_is_accepted"

    def record(self, record):
        for finished in record.iteration.finished if record.iteration is not None else ():
            for value in finished.tags.values():
                value.lower()


class Tidies(RecordingStatLogger):
    caught_by = "test_records_are_not_changed"

    def record(self, record):
        if record.scheduler is not None:
            record.scheduler.extra["heard"] = 1.0


class ExpectsToBeAnnounced(RecordingStatLogger):
    caught_by = "test_calls_may_come_in_any_order"

    def record(self, record):
        super().record(record)
        self.name = self.infos[-1].model


class Singleton(RecordingStatLogger):
    caught_by = "test_two_can_live_in_one_process"
    taken = False

    def __init__(self, context):
        super().__init__(context)
        if Singleton.taken:
            raise ValueError("registered twice")
        Singleton.taken = True


class WaitsForRoom(RecordingStatLogger):
    caught_by = "test_records_are_taken_without_waiting"

    def __init__(self, context):
        super().__init__(context)
        self.queue = queue.Queue(maxsize=100)

    def record(self, record):
        self.queue.put(record)

    def log(self):
        self.queue = queue.Queue(maxsize=100)


class BelongsToItsThread(RecordingStatLogger):
    caught_by = "test_calls_come_from_another_thread"

    def __init__(self, context):
        super().__init__(context)
        self.database = sqlite3.connect(":memory:")

    def record(self, record):
        self.database.execute("select 1")

    def shutdown(self):
        self.database.close()


class DividesByTheTimeBetween(RecordingStatLogger):
    caught_by = "test_a_record_may_hold_nothing"
    last_time = None

    def record(self, record):
        if self.last_time is not None and record.iteration is not None:
            self.rate = record.iteration.num_generation_tokens / (record.time - self.last_time)
        self.last_time = record.time


# -------------------------------------------------------------------------------------------------------- IO processors
class TestBytes(IOProcessorContract):
    io_processor = ByteIOProcessor


class EmitsHalves(ByteIOProcessor):
    caught_by = "test_pieces_add_up"

    class Detokenizer(ByteDetokenizer):
        def push(self, token_ids):
            self.consumed = len(token_ids)
            return bytes(token_ids).decode("utf-8", "replace")

    def make_detokenizer(self, prompt_token_ids, params):
        return self.Detokenizer(params)


class OverlooksBorders(ByteIOProcessor):
    caught_by = "test_stop_strings_end_the_text"

    class Detokenizer(ByteDetokenizer):
        def _certain(self):
            text, self._held = self._held, ""
            return text

    def make_detokenizer(self, prompt_token_ids, params):
        return self.Detokenizer(params)


class RaisesWhatItLikes(ByteIOProcessor):
    caught_by = "test_what_is_no_prompt_is_refused"

    def process_prompt(self, prompt, params, *, add_special_tokens=True):
        return super().process_prompt(TextPrompt(prompt.text + ""), params)


class SharesADetokenizer(ByteIOProcessor):
    caught_by = "test_streams_do_not_share_state"
    shared = None

    def make_detokenizer(self, prompt_token_ids, params):
        self.shared = self.shared or ByteDetokenizer(params)
        return self.shared


class ConsumesWhatFollowsTheStop(ByteIOProcessor):
    caught_by = "test_stop_strings_end_the_text"

    class Detokenizer(ByteDetokenizer):
        def push(self, token_ids):
            text = super().push(token_ids)
            self.consumed = len(token_ids)
            return text

    def make_detokenizer(self, prompt_token_ids, params):
        return self.Detokenizer(params)


class DropsWhatWasHeldBack(ByteIOProcessor):
    caught_by = "test_what_looks_like_a_stop_string_is_released"

    class Detokenizer(ByteDetokenizer):
        def finish(self):
            return ""

    def make_detokenizer(self, prompt_token_ids, params):
        return self.Detokenizer(params)


class ClearsThePrompt(ByteIOProcessor):
    caught_by = "test_a_prompt_is_left_as_it_was"

    def process_prompt(self, prompt, params, *, add_special_tokens=True):
        processed = super().process_prompt(prompt, params, add_special_tokens=add_special_tokens)
        processed.token_ids[:] = 0
        return processed


class LeavesOutputsUnfinished(ByteIOProcessor):
    caught_by = "test_outputs_are_handed_on"

    def post_process(self, output):
        output.finished = False
        return output


SUITES = {
    InstantExecutor: ("executor", ExecutorContract),
    StatLogger: ("stat_logger", StatLoggerContract),
    ByteIOProcessor: ("io_processor", IOProcessorContract),
}
BROKEN = [
    value
    for value in list(globals().values())
    if isinstance(value, type) and "caught_by" in vars(value)
]


def suite_of(broken):
    """Kind and suite of a broken class."""
    return next(suite for interface, suite in SUITES.items() if issubclass(broken, interface))


CASES = [pytest.param(each, marks=pytest.mark.broken(suite_of(each)[0])) for each in BROKEN]


@pytest.mark.parametrize("broken", CASES, ids=lambda broken: broken.__name__)
@pytest.mark.integration
def test_defect_is_found_by_the_test_that_names_it(broken):
    kind, base = suite_of(broken)
    fields = {
        kind: broken,
        "phases": (Phase.generate,),
        "record_timeout_s": 0.3,
        "exit_timeout_s": 0.3,
    }
    suite = type("Suite", (base,), fields)
    with children_killed():
        assert broken.caught_by in failing_tests(suite, [broken.caught_by])


def test_options_that_are_a_method_are_refused_with_the_remedy():
    with pytest.raises(TypeError, match="write a dict, or make it a property"):
        resolve_target("stat_logger", RecordingStatLogger, lambda tmp_path: {"path": tmp_path})  # type: ignore[arg-type]
