"""The engine core: steps the executor, KV cache and scheduler of one engine. Runs wherever the engine runs.

One step is schedule → execute → update; with an executor of several concurrent steps, its queue is filled before
results are collected.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tenonry.config import EngineConfig
from tenonry.engine.request_checks import check_request
from tenonry.errors import (
    ErrorCode,
    PluginError,
    PluginFault,
    RequestError,
    TenonryError,
    is_interrupt,
)
from tenonry.info import ModelInfo, PluginRecord
from tenonry.interfaces.executor import Executor
from tenonry.interfaces.kv_connector import KVConnector
from tenonry.interfaces.request_check import RequestLimits
from tenonry.interfaces.scheduler import Scheduler
from tenonry.interfaces.step_observer import StepObserver
from tenonry.interfaces.worker import Worker
from tenonry.kv_cache import KVCacheConfig
from tenonry.messages import (
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineFacts,
    FinishedOutput,
    OutputsByClient,
    client_of,
)
from tenonry.outputs import FinishReason
from tenonry.plugin.plan import PluginPlan
from tenonry.request import Request
from tenonry.step import SchedulerOutput, StepFuture

logger = logging.getLogger(__name__)
STATS_INTERVAL_S = 0.2
STALL_S = 10.0
MAX_DUMPED_ROWS = 32


def shut_down(*parts: Executor | Scheduler | KVConnector | StepObserver | None) -> None:
    """Shut down the existing parts; an error of one is logged, and the others follow."""
    for part in parts:
        if part is None:
            continue
        try:
            part.shutdown()
        except Exception:
            logger.exception("shutting down %s failed", type(part).__name__)


def rank_plugin(plan: PluginPlan, error: BaseException) -> PluginRecord:
    """Return the innermost of executor and worker in a traceback; the worker for an error of another process, which
    has an attribute `plugin`.
    """
    kind = "worker"
    for frame, _ in traceback.walk_tb(error.__traceback__):
        match frame.f_locals.get("self"):
            case Executor():
                kind = "executor"
            case Worker():
                kind = "worker"
    return plan.get("worker" if hasattr(error, "plugin") else kind)


@dataclasses.dataclass(eq=False, repr=False)
class EngineCore:
    """One engine, stepped by its caller; `build_engine` makes its parts.

    `step()` does the work; every other method returns immediately, except those documented to drain the steps in
    flight first.
    """

    config: EngineConfig
    model: ModelInfo
    plan: PluginPlan
    index: int
    clock: Callable[[], float]
    executor: Executor
    kv_cache: KVCacheConfig
    kv_connector: KVConnector | None
    scheduler: Scheduler
    observers: Sequence[tuple[PluginRecord, StepObserver]]

    def __post_init__(self) -> None:
        has_tasks = "tasks" in self.executor.capabilities
        self.tasks: dict[str, int] = self.executor.call("tasks")[0] if has_tasks else {}
        self.limits = RequestLimits(
            self.kv_cache.max_model_len,
            self.model.vocab_size,
            self.config,
            self.plan.get("worker").name,
            self.executor.capabilities,
            self.tasks,
            self.plan.load_request_checks(),
        )
        self.depth = self.executor.max_concurrent_batches
        self.num_passes = 0  # steps with tokens to compute
        self.held = ""  # reason why no step runs
        self.is_away = False  # without memory for any step
        self.refusal = ""  # reason why requests are rejected
        self.weight_version = ""
        self.steps_together = False
        self.in_flight: deque[tuple[SchedulerOutput, StepFuture]] = deque()
        self._held_outputs: deque[OutputsByClient] = deque()
        self._arrivals = 0
        self._live: set[int] = set()  # handles of unfinished requests
        self._fault: TenonryError | None = None  # cause of this engine's end
        self._idle_since: float | None = None
        self._wants_stats = self.config.log_stats or self.config.stat_loggers
        self._stats_due = 0.0
        self._stats_dirty = False

    def facts(self, epoch: int = 0) -> EngineFacts:
        """Return the facts for front ends; `epoch`: epoch of the engine's messages."""
        return EngineFacts(
            index=self.index,
            epoch=epoch,
            num_gpu_blocks=self.kv_cache.num_blocks,
            block_size=self.kv_cache.block_size,
            max_model_len=self.kv_cache.max_model_len,
            resolved=self.executor.resolved_plugins(),
            tasks=self.tasks,
        )

    # ------------------------------------------------------------------ requests
    def add_request(self, source: EngineCoreRequest) -> FinishedOutput | None:
        """Queue a request. A request that cannot run ends immediately, and its terminal outcome is returned."""
        try:
            self._check(source)
            self._arrivals += 1
            request = Request(source, self._arrivals, self.clock(), self.limits.max_model_len)
            known = request.new_row(0, 0, ())
            self.scheduler.add_request(request)
        except RequestError as error:
            return FinishedOutput(
                source.handle,
                FinishReason.ERROR,
                error=str(error),
                code=error.code,
                param=error.param,
            )
        except BaseException as error:
            raise self._blame(self.plan.get("scheduler"), "add_request", error) from error
        self._live.add(source.handle)
        self._observe("added", known)
        return None

    def _check(self, source: EngineCoreRequest) -> None:
        """Raise RequestError for a request that this engine does not support, from any client."""
        if self.refusal:
            raise RequestError(self.refusal, code=ErrorCode.ENGINE_HELD)
        check_request(source, self.limits)
        if not 0 < source.handle < 2**64 or source.handle in self._live:
            raise RequestError(f"handle {source.handle} is in use or invalid", "handle")
        if source.data_parallel_rank not in (None, self.index):
            raise RequestError(
                f"data_parallel_rank={source.data_parallel_rank}, but this is engine {self.index}",
                "data_parallel_rank",
            )
        if source.kv_transfer_params and self.kv_connector is None:
            logger.warning(
                "request %s has kv_transfer_params, but there is no KV connector", source.request_id
            )

    def abort_requests(self, handles: Iterable[int] | None) -> OutputsByClient:
        """Abort requests, all by default. Returns their terminal outcomes, for interested clients."""
        outputs_by_client: OutputsByClient = {}
        for request in self._ask("finish_requests", handles, FinishReason.ABORT):
            self._ended(request.handle)
            outcome = FinishedOutput(
                request.handle, FinishReason.ABORT, num_preemptions=request.num_preemptions
            )
            client = client_of(request.handle)
            outputs_by_client.setdefault(client, EngineCoreOutputs()).finished.append(outcome)
        self._stats_dirty = True
        return outputs_by_client

    def abort_client(self, client: int) -> None:
        """End all requests of a front end."""
        self.abort_requests([handle for handle in self._live if client_of(handle) == client])

    def _ended(self, handle: int) -> None:
        self._live.discard(handle)
        self._observe("ended", handle)

    def has_work(self) -> bool:
        """True while `step()` may have something to do."""
        if self.in_flight or self._held_outputs or self._fault:
            return True
        return not self.held and self._ask("has_requests")

    def request_counts(self) -> tuple[int, int]:
        """(running, waiting)."""
        return self._ask("get_request_counts")  # type: ignore[no-any-return]

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Clear cached blocks, after draining the steps in flight; True if all were cleared."""
        self.collect_all()
        done: bool = self._ask("reset_prefix_cache", reset_running_requests)
        if reset_connector and self.kv_connector is not None:
            done = self.kv_connector.reset() and done
        return done

    def reset_mm_cache(self) -> None:
        """Drop encoded media in workers. Media of running requests are encoded again."""
        if self.has_work():
            logger.warning("reset_mm_cache during requests: their media are encoded again")
        if self.config.max_images:
            self.call_workers("reset_mm_cache")

    # ------------------------------------------------------------------ the step
    def step(self) -> tuple[OutputsByClient, bool]:
        """Launch a step if one fits, else collect the oldest. Returns (outputs per client, True if a step ran)."""
        if self._fault is not None:
            raise self._fault
        if self._held_outputs:
            return self._held_outputs.popleft(), True
        launched = len(self.in_flight) < self.depth and self._ask("has_requests") and self._launch()
        if launched and len(self.in_flight) < self.depth and not self.in_flight[0][1].done():
            return {}, True
        if not self.in_flight or self.in_flight[0][0].is_empty:  # an empty step polls KV transfers
            self._note_stall()
            return self._collect() if self.in_flight else {}, False
        self._idle_since = None
        return self._collect(), True

    def _note_stall(self) -> None:
        """Log once that requests wait and the scheduler has scheduled nothing."""
        now = self.clock()
        if self._idle_since is None or not self._ask("has_requests"):
            self._idle_since = now
        elif now - self._idle_since > STALL_S:
            self._idle_since = math.inf
            logger.warning(
                "scheduler '%s' has scheduled nothing for %.0f s; %d requests run, %d wait; it chose none, or a KV "
                "transfer hangs",
                self.plan.get("scheduler").name,
                STALL_S,
                *self.request_counts(),
            )

    def _launch(self) -> bool:
        output: SchedulerOutput = self._ask("schedule")
        is_empty = output.is_empty and self.kv_connector is None
        if is_empty or not self.executor.runs_elsewhere:
            self._observe("scheduled", output)
        if is_empty:
            return False  # workers never receive this step; only its number is consumed
        future = self._execute(output)
        if self.executor.runs_elsewhere:
            self._observe("scheduled", output)  # while the other processes compute
        self.in_flight.append((output, future))
        if len(output.row):
            self.num_passes += 1
        return True

    def _observe(self, call: str, *args: Any) -> None:
        for record, observer in self.observers:
            try:
                getattr(observer, call)(*args)
            except BaseException as error:
                raise self._blame(record, call, error) from error

    def _execute(self, output: SchedulerOutput) -> StepFuture:
        try:
            return self.executor.execute_model(output)
        except BaseException as error:
            if self.executor.runs_elsewhere:
                with contextlib.suppress(PluginFault):  # ContractViolation: the scheduler's fault
                    self._observe("scheduled", output)
            raise self._blame_rank(error, output) from error

    def _collect(self) -> OutputsByClient:
        output, future = self.in_flight.popleft()
        try:
            result = future.result()
        except BaseException as error:
            raise self._blame_rank(error, output) from error
        outputs_by_client: OutputsByClient = self._ask("update_from_output", output, result)
        self._observe("answered", result)
        for outputs in outputs_by_client.values():
            outputs.weight_version = self.weight_version
            for finished in outputs.finished:
                self._ended(finished.handle)
        self._stats_dirty = True
        return outputs_by_client

    def collect_all(self) -> None:
        """Drain the steps in flight; the next `step()` calls return their outputs."""
        while self.in_flight:
            self._held_outputs.append(self._collect())

    def call_workers(
        self,
        method: str,
        args: Sequence[Any] = (),
        timeout: float | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a worker method of the allow-list on every rank, after draining the steps in flight."""
        self.collect_all()
        return self.executor.call(method, args, timeout, kwargs)

    # ------------------------------------------------------------------ statistics and faults
    def attach_stats(self, outputs_by_client: OutputsByClient, *, idle: bool) -> OutputsByClient:
        """Attach the scheduler's stats for client 0, a few times a second and when work ends; returns its argument."""
        if self._wants_stats and self._stats_dirty and (idle or self.clock() >= self._stats_due):
            self._stats_due = self.clock() + STATS_INTERVAL_S
            self._stats_dirty = False
            outputs = outputs_by_client.setdefault(0, EngineCoreOutputs())
            outputs.scheduler_stats = self._ask("make_stats")
        return outputs_by_client

    def _dump_state(self, output: SchedulerOutput) -> None:
        """Log the state without contents of requests; a second fault must not hide the first."""
        stats: object
        try:
            stats = self.scheduler.make_stats()
        except Exception as error:  # noqa: BLE001 - it is named in the line
            stats = error
        some = slice(MAX_DUMPED_ROWS)
        new = [
            (each.row, each.handle, len(each.token_ids), each.num_computed, each.num_output)
            for each in output.new[some]
        ]
        logger.error(
            "step %d failed: %d rows, %d tokens, %d new, %d gone; stats %s; settings %.4000s; rows %s compute %s "
            "tokens; new (row, handle, tokens known, computed, output) %s",
            output.step_id,
            len(output.row),
            output.total_tokens,
            len(output.new),
            len(output.gone),
            stats,
            self.config.describe(self.plan.secrets),
            output.row[some].tolist(),
            output.num_tokens[some].tolist(),
            new,
        )

    def _ask(self, call: str, *args: Any) -> Any:
        """Call the scheduler; attribute exceptions and missing results to it."""
        try:
            if (result := getattr(self.scheduler, call)(*args)) is None:
                raise TypeError("the result is None")
            return result
        except BaseException as error:
            raise self._blame(self.plan.get("scheduler"), call, error) from error

    def _blame_rank(self, error: BaseException, output: SchedulerOutput) -> TenonryError:
        """As `_blame`, for executor or worker, with the state of the engine at the failed step."""
        if not is_interrupt(error):
            self._dump_state(output)
        return self._blame(rank_plugin(self.plan, error), "execute_model", error)

    def _blame(self, entry: PluginRecord, call: str, error: BaseException) -> TenonryError:
        """Attribute an exception to a plugin; an error that names one already passes unchanged. No step follows."""
        if is_interrupt(error):
            raise error
        self._fault = error if isinstance(error, PluginError) else entry.fault(call, error)
        return self._fault

    def shutdown(self) -> None:
        """Release everything; called once, also after a fault."""
        self.in_flight.clear()
        observers = [observer for _, observer in self.observers]
        shut_down(self.executor, self.scheduler, self.kv_connector, *observers)
