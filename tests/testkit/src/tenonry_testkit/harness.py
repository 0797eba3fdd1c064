"""Drives one scheduler like the engine, with a fake worker and every check. Test process, engine's role.

Steps are computed and answered in launch order, up to `depth` in flight; the caller decides when a result arrives. A
violation of the contract raises `RuleBroken`, `ContractViolation` (the validator) or `FakeKVError` (a wrong block)
immediately.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tenonry.errors import RequestError
from tenonry.interfaces.kv_connector import KVConnector
from tenonry.interfaces.plugin import NO_OPTIONS
from tenonry.interfaces.scheduler import Scheduler, SchedulerContext
from tenonry.kv_cache import KVCacheGroup
from tenonry.messages import EngineCoreRequest, FinishedOutput, make_handle
from tenonry.outputs import FinishReason
from tenonry.plugin.manager import resolve_point
from tenonry.request import Request
from tenonry.sampling_params import SamplingParams, StructuredOutput
from tenonry.step import DoneFuture, ModelRunnerOutput, RowFailure, SchedulerOutput, StepFuture
from tenonry_scheduling.validator import StepValidator
from tenonry_testkit.answers import answer_of
from tenonry_testkit.fakes.clock import VirtualClock
from tenonry_testkit.fakes.tokens import Completion
from tenonry_testkit.fakes.worker import FakeWorker
from tenonry_testkit.ledger import Entry, Ledger, as_ids
from tenonry_testkit.patience import Patience
from tenonry_testkit.rules import (
    GONE_IS_SENT,
    NO_OUTPUT_AFTER_THE_END,
    ONE_OUTCOME,
    TRANSFERS_END,
    RuleBroken,
    expect,
)
from tenonry_testkit.spec import HarnessSpec, Oracle, StepRunner, ready_fake_worker, travelled
from tenonry_testkit.state_checker import StateChecker
from tenonry_testkit.step_checker import StepChecker
from tenonry_testkit.transfer_log import TransferLog

STEP_TIMEOUT_S = 20.0  # for one step of a real worker


class SchedulerHarness:
    """One scheduler, one worker, one ledger.

    `build` makes the scheduler from its context. `worker`: another worker than the fake one, ready after
    `initialize_cache`; its tokens must be those of `oracle`. `guard` is entered around every call of the scheduler.
    """

    def __init__(
        self,
        build: Callable[[SchedulerContext], Scheduler],
        spec: HarnessSpec | None = None,
        *,
        connectors: tuple[KVConnector, KVConnector] | None = None,
        worker: StepRunner | None = None,
        oracle: Oracle | None = None,
        groups: Sequence[KVCacheGroup] = (),
        plugin_name: str = "under test",
        options: Any = None,
        resolve: Callable[[str, str], Any] | None = None,
        guard: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
        patience: Patience | None = None,
    ) -> None:
        self.spec = spec or HarnessSpec()
        self.config = self.spec.engine_config()
        self.kv_cache = self.spec.kv_cache(groups)
        self.clock = VirtualClock()
        model = self.spec.token_model()
        self.oracle: Oracle = oracle or model
        self.guard = guard
        self.ledger = Ledger()
        self.connector = connectors[0] if connectors else None
        self.transfer_log: TransferLog | None = None
        if connectors:
            sources = self._blocks_of_rows, self.ledger.all_tokens
            self.transfer_log = TransferLog(connectors, model, self.spec.block_size, *sources)
        self.worker: StepRunner = worker or ready_fake_worker(
            self.spec, connectors[1] if connectors else None
        )
        context = self._context(plugin_name, options, resolve)
        with self.guard():
            self.scheduler = build(context)
        self.validator = StepValidator(self.scheduler.context)
        self.step_checker = StepChecker(self.spec, self.kv_cache, self.ledger)
        self.state_checker = StateChecker(
            self.scheduler, self.ledger, self.step_checker, self.spec.max_num_seqs
        )
        self.in_flight: deque[tuple[SchedulerOutput, StepFuture]] = deque()
        self.outputs: list[SchedulerOutput] = []
        self._patience = patience or Patience()
        self._count = 0
        self._name: Callable[[int], str] = "request-{}".format

    def _context(
        self, plugin_name: str, options: Any, resolve: Callable[[str, str], Any] | None
    ) -> SchedulerContext:
        return SchedulerContext(
            self.config,
            self.kv_cache,
            max_model_len=self.spec.max_model_len,
            clock=self.clock,
            options=options if options is not None else NO_OPTIONS,
            plugin_name=plugin_name,
            max_concurrent_steps=self.spec.depth,
            feeds_back_tokens=self.spec.feeds_back,
            max_round_tokens=1 if self.connector else self.spec.max_round_tokens,
            kv_connector=self.connector,
            resolve=resolve or resolve_point,
        )

    def _blocks_of_rows(self) -> set[int]:
        rows = self.step_checker.rows.values()
        return {block for stay in rows for ids in stay.blocks for block in ids}

    @contextlib.contextmanager
    def _calls(self) -> Iterator[None]:
        """Context of calls of the parts under test; the connector's violations in them are raised first."""
        with self._checked(), self.guard():
            yield

    def _checked(self) -> contextlib.AbstractContextManager[object]:
        log = self.transfer_log
        return contextlib.nullcontext() if log is None else log.checked()

    def name_requests(self, name: Callable[[int], str]) -> None:
        """Name later requests `name(number)`."""
        self._name = name

    # ------------------------------------------------------------------ requests
    def add(
        self,
        prompt: Sequence[int],
        max_tokens: int | None = 4,
        *,
        min_tokens: int = 0,
        stop_token_ids: Sequence[int] = (),
        num_delivered: int = 0,
        client: int = 0,
        name: str | None = None,
        seed: int | None = None,
        temperature: float = 0.0,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        allowed_token_ids: Sequence[int] | None = None,
        structured_output: StructuredOutput | None = None,
        sampling: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Entry:
        """Send a request. `num_delivered` of its output tokens count as delivered by another engine.

        `sampling` are further fields of SamplingParams, `fields` of EngineCoreRequest (priority, adapter, cache_salt,
        tags, …). A request that the scheduler rejects ends immediately, with an error.
        """
        params = SamplingParams(
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            temperature=temperature,
            seed=seed,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            allowed_token_ids=None if allowed_token_ids is None else tuple(allowed_token_ids),
            structured_output=structured_output,
            **(sampling or {}),
        )
        self._count += 1
        source = EngineCoreRequest(
            handle=make_handle(client, self._count),
            request_id=name or self._name(self._count),
            prompt_token_ids=as_ids(prompt),
            sampling_params=params,
            stop_token_ids=tuple(stop_token_ids),
            **fields,
        )
        if num_delivered:
            whole = self._expected(source).token_ids
            delivered = whole[: min(num_delivered, len(whole) - 1)]
            source = msgspec.structs.replace(source, output_token_ids=delivered)
        request = Request(source, self._count, self.clock(), self.spec.max_model_len)
        entry = Entry(request, self._expected(source), self._count)
        self._enter(entry)
        return entry

    def _expected(self, source: EngineCoreRequest) -> Completion:
        return self.oracle.complete(
            source.prompt_token_ids.tolist(),
            source.sampling_params,
            max_model_len=self.spec.max_model_len,
            stop_ids=source.stop_token_ids,
            adapter=source.adapter,
            delivered=source.output_token_ids,
        )

    def _enter(self, entry: Entry) -> None:
        self.ledger.add(entry)
        self.validator.added(entry.request.new_row(0, 0, ()))
        try:
            with self.guard():
                self.scheduler.add_request(entry.request)
        except RequestError as error:
            self.ledger.end(
                entry, FinishedOutput(entry.handle, FinishReason.ERROR, error=str(error))
            )
            self.validator.ended(entry.handle)
        else:
            self.step_checker.arrived(entry)
        self.state_checker.check_counts()

    def abort(
        self, handles: Iterable[int] | None, reason: FinishReason = FinishReason.ABORT
    ) -> list[Request]:
        """End requests from outside, all by default. Checks that exactly the live ones are reported as ended."""
        asked = None if handles is None else list(handles)
        wanted = {
            entry.handle for entry in self.ledger.live if asked is None or entry.handle in asked
        }
        with self._calls():
            ended = answer_of(self.scheduler.finish_requests, asked, reason)
        named = [request.handle for request in ended]
        expect(
            len(set(named)) == len(named),
            ONE_OUTCOME,
            f"finish_requests names a request twice: {named}",
        )
        stray = set(named) - wanted
        detail = "finish_requests ended {}, which were not live or not asked for"
        expect(not stray, NO_OUTPUT_AFTER_THE_END, detail, stray)
        expect(
            set(named) == wanted,
            ONE_OUTCOME,
            f"finish_requests did not say that {wanted - set(named)} ended",
        )
        for request in ended:
            expect(
                request.is_finished,
                ONE_OUTCOME,
                f"{request} was returned as ended, but is {request.status.name}",
            )
            self.ledger.end_from_outside(request.handle, reason)
            self.validator.ended(request.handle)
            self.step_checker.ended(request.handle)
        self.state_checker.check_counts()
        return ended

    def fail(self, entry: Entry, code: int = RowFailure.NUMERICAL) -> None:
        """Make the worker fail this request's row from now on."""
        entry.may_fail = True
        self.fake_worker.fail_handles[entry.handle] = code

    @property
    def fake_worker(self) -> FakeWorker:
        if not isinstance(self.worker, FakeWorker):
            raise TypeError(
                f"this needs the fake worker; the harness was given a {type(self.worker).__name__}"
            )
        return self.worker

    def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        """Clear cached blocks; `reset_running_requests` preempts the running requests first."""
        with self.guard():
            done = answer_of(self.scheduler.reset_prefix_cache, reset_running_requests)
        self._note_lost_blocks(is_lost=True)
        self.step_checker.caches_were_reset()
        self.state_checker.check_counts()
        return done

    def _note_lost_blocks(self, *, is_lost: bool) -> None:
        if is_lost and self.transfer_log is not None:
            self.transfer_log.blocks_are_lost(entry.handle for entry in self.ledger.live)

    # ------------------------------------------------------------------ steps
    @property
    def can_launch(self) -> bool:
        return len(self.in_flight) < self.spec.depth and self._has_work()

    def _has_work(self) -> bool:
        """Return True if a step may be useful. This engine polls connectors even when idle, to account for blocks."""
        return answer_of(self.scheduler.has_requests) or self._num_transfers() > 0

    def launch(self) -> bool:
        """Run and check one `schedule()`, computed by the worker. False if there was nothing to do."""
        with self._calls():
            output = answer_of(self.scheduler.schedule)
        self.validator.scheduled(output)
        self.step_checker.check(output)
        for new in output.new:
            entry = self.ledger.entries[new.handle]
            entry.started_at = self.clock() if entry.started_at is None else entry.started_at
        self.outputs.append(output)
        self.state_checker.check_counts()
        if output.is_empty and self.connector is None:
            return False
        output.connector_metadata = travelled(output.connector_metadata)
        with self._checked():
            answer = self.worker.execute_model(output)
        future = DoneFuture(answer) if isinstance(answer, ModelRunnerOutput) else answer
        self.in_flight.append((output, future))
        if isinstance(self.worker, FakeWorker):
            for handle in self.worker.contaminated:
                self.ledger.entries[handle].may_fail = True
        return True

    def deliver(self) -> list[Entry]:
        """Deliver the oldest step's result; returns the requests that ended."""
        output, future = self.in_flight.popleft()
        result = future.result(STEP_TIMEOUT_S)
        self._note_lost_blocks(is_lost=len(result.failed_row) > 0)
        with self._calls():
            outputs_by_client = answer_of(self.scheduler.update_from_output, output, result)
        self.validator.answered(result)
        self.step_checker.answered(output, result)
        ended = self.ledger.take(outputs_by_client)
        if self.transfer_log is not None:
            self.transfer_log.check_parameters(ended)
        for entry in ended:
            self.validator.ended(entry.handle)
            self.step_checker.ended(entry.handle)
            if (
                entry.finished is not None
                and entry.finished.reason is FinishReason.ERROR
                and isinstance(self.worker, FakeWorker)
            ):
                self.worker.failure_was_reported(entry.handle)
        self.state_checker.check_counts()
        return ended

    def turn(self) -> bool:
        """Run one iteration of the engine: fill the queue of steps, then collect. False if there was nothing to do."""
        launched = self.can_launch and self.launch()
        if launched and len(self.in_flight) < self.spec.depth:
            return True
        if self.in_flight:
            self.deliver()
            return True
        return False

    def drain(self) -> None:
        """Run until everything ended, then check that nothing is left.

        Transfers of a KV connector are awaited by the wall clock, within `patience`.
        """
        steps_left = self.max_steps_left()
        self._patience.reset()
        while self.in_flight or self._has_work():
            num_outputs = len(self.outputs)
            num_transfers = self._num_transfers()
            moved = self.turn() and self._moved(num_outputs)
            if moved or self._num_transfers() != num_transfers:
                self._patience.reset()
                steps_left -= 1
                expect(steps_left > 0, ONE_OUTCOME, "no end in sight: {}", self.ledger.live)
            else:
                self._wait()
        self.check_end()

    def _num_transfers(self) -> int:
        return 0 if self.transfer_log is None else len(self.transfer_log.transfers)

    def _wait(self) -> None:
        """Wait after a turn without progress. Raises RuleBroken after too many."""
        log = self.transfer_log
        transferring = log is not None and log.is_waited_for
        self.clock.advance(self._patience.wait(transferring=transferring))
        if not self._patience.is_over(transferring=transferring):
            return
        if log is not None and transferring:
            raise RuleBroken(
                TRANSFERS_END,
                f"nothing has moved for {self._patience.waited_s:.1f} s (wall clock); {log.waits()}",
            )
        live = self.ledger.live
        what = f"unfinished requests: {live}" if live else "every request has ended"
        rule = ONE_OUTCOME if live else GONE_IS_SENT
        detail = f"has_requests() is True, but {self._patience.idle_turns} steps were empty; {what}"
        raise RuleBroken(rule, detail)

    def _moved(self, num_outputs: int) -> bool:
        """Return True if the last turn delivered a result, or launched a step with work."""
        if len(self.outputs) == num_outputs:
            return True
        output = self.outputs[-1]
        return bool(len(output.row) or len(output.gone) or output.new)

    def max_steps_left(self) -> int:
        """Upper bound of the steps of a scheduler that makes progress."""
        return 500 + 60 * sum(entry.limit for entry in self.ledger.live)

    def check_end(self) -> None:
        """Check that everything ended and was released. Raises RuleBroken."""
        self.state_checker.check_end()
