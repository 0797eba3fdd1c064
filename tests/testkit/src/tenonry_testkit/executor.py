"""The conformance suite of executors: steps in order, errors with their text, no leftovers. Test process.

    from tenonry_testkit.executor import ExecutorContract

    class TestMine(ExecutorContract):
        executor = "my_package:MyExecutor"

The ranks run the fake worker, so the tokens of every step are known. An executor with ranks in other processes finds it
by its target, as it would any worker.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import Any, ClassVar

import numpy as np
import psutil
import pytest

from tenonry.errors import Unsupported
from tenonry.interfaces.executor import Executor, ExecutorContext
from tenonry.step import NewRow, RowFailure, SchedulerOutput, StepFuture
from tenonry_testkit.fakes.model import fake_model
from tenonry_testkit.fakes.scheduler import ReferenceScheduler
from tenonry_testkit.fakes.worker import FakeWorker, FakeWorkerOptions
from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.processes import descendants
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.targets import resolve_target
from tenonry_testkit.traffic import Send, send

WORKER = "tenonry_testkit.fakes.worker:FakeWorker"
PATIENCE_S = 20.0


class ExecutorContract:
    """Subclass in a test module and name the `executor`; `options` are its own, `config` fields of EngineConfig.

    `config` sets the number of ranks (tensor_parallel_size, pipeline_parallel_size); one by default. `exit_timeout_s`:
    time after `shutdown` in which its processes must exit.
    """

    executor: ClassVar[str | type[Executor] | None] = None
    options: ClassVar[dict[str, Any]] = {}
    config: ClassVar[dict[str, Any]] = {}
    spec: ClassVar[HarnessSpec] = HarnessSpec(num_blocks=30)
    exit_timeout_s: ClassVar[float] = 5.0

    # ------------------------------------------------------------------ tools
    def setup_method(self) -> None:
        """Start a list of executors to shut down."""
        self._built: list[Executor] = []

    def teardown_method(self) -> None:
        """Shut down executors that the test did not, each once."""
        while self._built:
            self._built.pop().shutdown()

    def build(self, **worker_options: Any) -> Executor:
        """Build an unstarted executor; it is shut down at the end of the test."""
        cls, options, _ = resolve_target("executor", self.executor, self.options)
        spec = dataclasses.replace(self.spec, config=tuple(self.config.items()))
        given = {
            "vocab_size": spec.vocab_size,
            "feeds_back": cls.feeds_back_tokens,
            **worker_options,
        }
        executor: Executor = cls(
            ExecutorContext(
                spec.engine_config(),
                fake_model(vocab_size=spec.vocab_size),
                max_model_len=spec.max_model_len,
                worker_class=FakeWorker,
                worker_target=WORKER,
                worker_options=FakeWorkerOptions(**given),
                options=options,
            )
        )
        self._built.append(executor)
        return executor

    def start(self, **worker_options: Any) -> Executor:
        """Return an executor that can run steps."""
        executor = self.build(**worker_options)
        executor.on_failure(lambda reason: None)
        executor.start()
        executor.kv_cache_groups()
        executor.available_memory()
        executor.initialize(self.spec.kv_cache())
        return executor

    def harness(self, executor: Executor) -> SchedulerHarness:
        """Return an engine around the executor, with the maximum number of steps in flight."""
        spec = dataclasses.replace(
            self.spec,
            depth=executor.max_concurrent_batches,
            feeds_back=executor.feeds_back_tokens,
            config=tuple(self.config.items()),
        )
        return SchedulerHarness(ReferenceScheduler, spec, worker=executor)

    def _first_step(self, token_id: int = 3) -> SchedulerOutput:
        """One row with a prompt of three tokens, one of them `token_id`."""
        new = NewRow(
            row=0,
            handle=1,
            token_ids=np.array([1, token_id, 2], np.int32),
            num_computed=0,
            num_output=0,
            block_ids=(np.zeros(1, np.int32),),
            sampling=_greedy(),
        )
        return SchedulerOutput(
            step_id=0,
            new=[new],
            row=np.zeros(1, np.int32),
            num_tokens=np.array([3], np.int32),
            next_token=np.array([-1], np.int32),
            samples=np.ones(1, np.bool_),
            generation=np.zeros(1, np.int32),
            total_tokens=3,
        )

    # ------------------------------------------------------------------ start
    def test_start_reports_every_rank(self) -> None:
        """Groups and memory come once per rank; capabilities are those of the workers."""
        executor = self.build()
        executor.start()
        ranks = executor.context.config.world_size
        groups = executor.kv_cache_groups()
        memory = executor.available_memory()
        assert len(groups) == len(memory) == ranks
        assert all(group.layers for rank in groups for group in rank)
        executor.initialize(self.spec.kv_cache())
        assert executor.max_concurrent_batches >= 1
        assert executor.capabilities == FakeWorker.capabilities
        assert executor.resolved_plugins() == {"fake": "tokens"}
        executor.check_health()

    def test_a_failed_start_says_what_the_rank_said(self) -> None:
        """The error of `start` contains the failing rank's own message; shutdown works after it."""
        executor = self.build(fail_load="weights are in another castle")
        with pytest.raises(Exception, match="weights are in another castle"):
            executor.start()

    def test_shutdown_before_start(self) -> None:
        """The engine shuts down a built executor at any stage of its start."""
        self.build()

    # ------------------------------------------------------------------ steps
    def test_tokens_are_right_with_all_its_steps_in_flight(self) -> None:
        """Steps are executed and answered in order, and every row is answered once."""
        harness = self.harness(self.start())
        for number in range(7):
            ask = Send(
                family=number % 3,
                length=3 + 4 * (number % 4),
                max_tokens=9,
                logprobs=2 if number % 3 == 0 else None,
                prompt_logprobs=1 if number % 4 == 1 else None,
            )
            send(harness, ask)
        harness.drain()

    def test_failed_rows_are_handed_on(self) -> None:
        """The result contains the row that a worker cannot continue, with its code; the step is no error."""
        executor = self.start(fail_row_token=9)
        result = executor.execute_model(self._first_step(9)).result(PATIENCE_S)
        failed = dict(zip(result.failed_row.tolist(), result.failed_code.tolist(), strict=True))
        assert failed == {0: RowFailure.NUMERICAL}, (
            f"the worker failed row 0 with code {RowFailure.NUMERICAL}; the executor's result says {failed}"
        )
        assert not len(result.row), "a row is in `row` as well as in `failed_row`"

    def test_futures_resolve_in_step_order(self) -> None:
        """A done step implies that all earlier ones are done; `done` turns true without a call of `result`."""
        executor = self.start()
        harness = self.harness(executor)
        send(harness, Send(length=6, max_tokens=20))
        while harness.scheduler.has_requests():
            while harness.can_launch and harness.launch():
                pass
            futures = [future for _, future in harness.in_flight]
            _wait_until_done(futures[-1])
            assert all(future.done() for future in futures)
            answered = [future.result(PATIENCE_S).step_id for future in futures]
            assert answered == [output.step_id for output, _ in harness.in_flight]
            while harness.in_flight:
                harness.deliver()

    def test_an_error_in_a_step_reaches_its_result(self) -> None:
        """A worker's exception is raised by the step's future, or by the call that launched it, with its message."""
        executor = self.start(fail_step_token=9)
        with pytest.raises(Exception, match="told to fail on token 9"):
            executor.execute_model(self._first_step(9)).result(PATIENCE_S)

    def test_an_empty_step_is_answered(self) -> None:
        """A step without rows is a step."""
        result = self.start().execute_model(SchedulerOutput(step_id=0)).result(PATIENCE_S)
        assert (result.step_id, len(result.row)) == (0, 0)

    # ------------------------------------------------------------------ calls
    def test_calls_reach_every_rank(self) -> None:
        """One result per rank, in rank order."""
        executor = self.start()
        ranks = range(executor.context.config.world_size)
        assert executor.call("echo", ["a", 1], PATIENCE_S) == [[rank, "a", 1] for rank in ranks]
        assert executor.call("profile", [True]) == [True for _ in ranks]

    def test_calls_take_keyword_arguments(self) -> None:
        """By name on every rank; an unknown name is rejected with the accepted ones."""
        executor = self.start()
        ranks = range(executor.context.config.world_size)
        expected = [[rank, "a", {"b": 1}] for rank in ranks]
        assert executor.call("echo", ["a"], PATIENCE_S, {"b": 1}) == expected
        assert executor.call("profile", kwargs={"is_start": False}) == [False for _ in ranks]
        with pytest.raises(Exception, match=r"profile: .*'is_stop'; it takes is_start"):
            executor.call("profile", kwargs={"is_stop": True})

    def test_calls_are_limited_to_the_allow_list(self) -> None:
        """A name outside of the workers' allow-list is rejected; the ranks stay alive."""
        executor = self.start()
        for name in ("no_such_method", "shutdown", "load"):
            with pytest.raises(Unsupported, match=name):
                executor.call(name)
        assert executor.call("echo", [1])[0] == [0, 1]

    def test_an_error_in_a_call_is_raised(self) -> None:
        """Wrong arguments are the caller's error, with a text."""
        executor = self.start()
        with pytest.raises(Exception, match="argument"):
            executor.call("profile", [1, 2, 3])
        assert executor.execute_model(self._first_step()).result(PATIENCE_S).row.tolist() == [0]

    # ------------------------------------------------------------------ the end
    def test_shutdown_leaves_no_process(self) -> None:
        """After shutdown there is no new child process."""
        before = {process.pid for process in descendants()}
        executor = self.start()
        executor.execute_model(self._first_step()).result(PATIENCE_S)
        self.teardown_method()
        deadline = time.monotonic() + self.exit_timeout_s
        while True:
            left = [process for process in descendants() if process.pid not in before]
            if not left:
                return
            assert time.monotonic() < deadline, (
                f"{self.exit_timeout_s:g} s after shutdown() these processes still run: {left}"
            )
            time.sleep(0.02)

    def test_a_rank_that_dies_is_reported(self) -> None:
        """`on_failure` calls back when a rank's process dies, and the health check raises.

        Ranks in the engine's process cannot die alone.
        """
        before = {process.pid for process in descendants()}
        executor = self.build()
        heard = threading.Event()
        reasons = []

        def failed(reason: str) -> None:
            reasons.append(reason)
            heard.set()

        executor.on_failure(failed)
        executor.start()
        executor.initialize(self.spec.kv_cache())
        ranks = [process for process in descendants() if process.pid not in before]
        if not ranks:
            pytest.skip("this executor starts no processes")
        _kill(ranks[-1])
        assert heard.wait(PATIENCE_S)
        assert reasons[0]
        with pytest.raises(Exception, match=r".+"):
            executor.check_health()


def _greedy() -> Any:
    from tenonry.sampling_params import SamplingParams

    return SamplingParams(temperature=0.0)


def _wait_until_done(future: StepFuture) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not future.done():
        assert time.monotonic() < deadline, (
            "the future is not done; it must become so without a call of result()"
        )
        time.sleep(0.001)


def _kill(process: psutil.Process) -> None:
    process.kill()
