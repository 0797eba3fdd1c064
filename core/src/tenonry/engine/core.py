"""The engine core: executor, KV cache and scheduler of one engine, and `step()`. Runs wherever the engine runs.

Build order: executor, its failure callback, model, KV cache, scheduler. One step is schedule → execute → update; with
an executor that takes several steps at once, filling its queue comes before collecting results.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from tenonry.config import EngineConfig
from tenonry.engine.build import EngineParts, release
from tenonry.errors import PluginError, PluginFault, RequestError, TenonryError
from tenonry.handle import client_of
from tenonry.info import ModelInfo
from tenonry.messages import EngineCoreOutputs, EngineCoreRequest, EngineFacts, FinishedOutput
from tenonry.outputs import FinishReason
from tenonry.plugin.plan import PluginPlan
from tenonry.request import Request
from tenonry.request_limits import RequestLimits, check_request
from tenonry.step import SchedulerOutput, StepFuture

logger = logging.getLogger(__name__)
News = dict[int, EngineCoreOutputs]
STATS_INTERVAL_S = 0.2
STALL_S = 10.0


def _log_failure(reason: str) -> None:
    logger.error("the executor failed: %s", reason)


class EngineCore(EngineParts):
    """One engine. `step()` moves everything; all other methods return at once, but for those that say that they want no
    step in flight.

    `on_failure(reason)` is called, from any thread, when the executor loses a rank.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: ModelInfo,
        plan: PluginPlan,
        *,
        engine_index: int = 0,
        on_failure: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(config, model, plan, engine_index, on_failure or _log_failure, clock)
        self.limits = RequestLimits(self.kv_cache.max_model_len, model.vocab_size)
        self.depth = self.executor.max_concurrent_batches
        self._in_flight: deque[tuple[SchedulerOutput, StepFuture]] = deque()
        self._held_news: deque[News] = deque()
        self._arrivals = 0
        self._live: set[int] = set()  # handles that have not ended
        self._fault: TenonryError | None = None  # what ended this engine
        self._idle_since: float | None = None
        self.num_passes = 0  # steps with tokens to compute
        self._stats_due = 0.0
        self._stats_dirty = False

    def facts(self, epoch: int = 0) -> EngineFacts:
        """What a front end has to know of this engine; `epoch` is the one its messages carry."""
        return EngineFacts(
            index=self.index,
            epoch=epoch,
            num_gpu_blocks=self.kv_cache.num_blocks,
            block_size=self.kv_cache.block_size,
            max_model_len=self.kv_cache.max_model_len,
            resolved=self.executor.resolved_plugins(),
        )

    # ------------------------------------------------------------------ requests
    def add_request(self, source: EngineCoreRequest) -> FinishedOutput | None:
        """Queue a request; what cannot run ends at once, alone: its terminal outcome is returned."""
        try:
            self._check(source)
            self._arrivals += 1
            request = Request(source, self._arrivals, self.clock(), self.limits.max_model_len)
            self.scheduler.add_request(request)
        except RequestError as error:
            return FinishedOutput(source.handle, FinishReason.ERROR, error=str(error))
        except Exception as error:
            raise self._blame("scheduler", "add_request", error) from error
        self._live.add(source.handle)
        if self.validator is not None:
            self.validator.added(source.handle)
        return None

    def _check(self, source: EngineCoreRequest) -> None:
        """Raises RequestError for what this engine cannot do, whoever sent it."""
        check_request(source, self.limits)
        if not 0 < source.handle < 2**64 or source.handle in self._live:
            raise RequestError(f"handle {source.handle} is in use, or is none", "handle")
        if source.data_parallel_rank not in (None, self.index):
            raise RequestError(
                f"data_parallel_rank={source.data_parallel_rank}, but this is engine {self.index}",
                "data_parallel_rank",
            )
        for field, capability in (("adapter", "lora"), ("features", "features")):
            if (
                value := getattr(source, field)
            ) is not None and capability not in self.executor.capabilities:
                worker = self.plan.get("worker").name
                raise RequestError(
                    f"{field}={value!r:.64}: worker '{worker}' does not support '{capability}'",
                    field,
                )
        if source.kv_transfer_params and self.kv_connector is None:
            logger.warning(
                "request %s brings kv_transfer_params, but no KV connector runs", source.request_id
            )

    def abort_requests(self, handles: Iterable[int] | None) -> News:
        """End requests from outside, None for all. Returns their terminal outcomes, for clients that want them."""
        news: News = {}
        for request in self._ask("finish_requests", handles, FinishReason.ABORT):
            self._ended(request.handle)
            outcome = FinishedOutput(
                request.handle, FinishReason.ABORT, num_preemptions=request.num_preemptions
            )
            news.setdefault(client_of(request.handle), EngineCoreOutputs()).finished.append(outcome)
        self._stats_dirty = True
        return news

    def abort_client(self, client: int) -> None:
        """End all requests of a front end."""
        self.abort_requests([handle for handle in self._live if client_of(handle) == client])

    def _ended(self, handle: int) -> None:
        self._live.discard(handle)
        if self.validator is not None:
            self.validator.ended(handle)

    def has_work(self) -> bool:
        """True while `step()` may have something to do."""
        return bool(self._in_flight or self._held_news or self._fault) or self._ask("has_requests")

    def request_counts(self) -> tuple[int, int]:
        """(running, waiting)."""
        counts: tuple[int, int] = self._ask("get_request_counts")
        return counts

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget cached blocks, with no step in flight; True if all were forgotten."""
        self.collect_all()
        return bool(self._ask("reset_prefix_cache", reset_running_requests))

    # ------------------------------------------------------------------ the step
    def step(self) -> tuple[News, bool]:
        """Launch a step if one fits, else collect the oldest. Returns (news per client, whether a step was run)."""
        if self._fault is not None:
            raise self._fault
        if self._held_news:
            return self._held_news.popleft(), True
        launched = (
            len(self._in_flight) < self.depth and self._ask("has_requests") and self._launch()
        )
        if launched and len(self._in_flight) < self.depth and not self._in_flight[0][1].done():
            return {}, True
        if not self._in_flight or self._in_flight[0][0].is_empty:  # or a transfer is on the way
            self._note_stall()
            return self._collect() if self._in_flight else {}, False
        self._idle_since = None
        return self._collect(), True

    def _note_stall(self) -> None:
        """Nobody would see why nothing happens: say once that there is work, and the scheduler does none."""
        now = self.clock()
        if self._idle_since is None or not self._ask("has_requests"):
            self._idle_since = now
        elif now - self._idle_since > STALL_S:
            self._idle_since = math.inf
            logger.warning(
                "scheduler '%s' has scheduled nothing for %.0f s; %d requests run, %d wait; a KV transfer may hang",
                self.plan.get("scheduler").name, STALL_S, *self.request_counts(),
            )  # fmt: skip

    def _launch(self) -> bool:
        output: SchedulerOutput = self._ask("schedule")
        is_empty = output.is_empty and self.kv_connector is None
        if is_empty or not self.executor.runs_elsewhere:
            self._validate(output)
        if is_empty:
            return (
                False  # nothing to compute: the step reaches no worker, only its number is used up
            )
        future = self._execute(output)
        if self.executor.runs_elsewhere:
            self._validate(output)  # meanwhile
        self._in_flight.append((output, future))
        self.num_passes += len(output.row) > 0
        return True

    def _validate(self, output: SchedulerOutput) -> None:
        if self.validator is not None:
            self.validator.check(output)

    def _execute(self, output: SchedulerOutput) -> StepFuture:
        try:
            return self.executor.execute_model(output)
        except Exception as error:
            if self.executor.runs_elsewhere:
                self._validate(output)  # or a worker would be blamed for what the scheduler did
            self._dump_state(output)
            raise self._blame("worker", "execute_model", error) from error

    def _collect(self) -> News:
        output, future = self._in_flight.popleft()
        try:
            result = future.result()
        except Exception as error:
            self._dump_state(output)
            raise self._blame("worker", "execute_model", error) from error
        news: News = self._ask("update_from_output", output, result)
        if self.validator is not None:
            self.validator.answered(output, result)
        for outputs in news.values():
            for finished in outputs.finished:
                self._ended(finished.handle)
        self._stats_dirty = True
        return news

    def collect_all(self) -> None:
        """Wait for every step in flight; the news is delivered by the next `step()` calls."""
        while self._in_flight:
            self._held_news.append(self._collect())

    # ------------------------------------------------------------------ numbers and faults
    def attach_stats(self, news: News, *, idle: bool) -> News:
        """Give client 0 the scheduler's numbers, a few times a second and when work ends; returns `news`."""
        is_wanted = (
            self.config.log_stats or self.config.stat_loggers
        )  # whoever brings a logger wants to hear something
        if is_wanted and self._stats_dirty and (idle or self.clock() >= self._stats_due):
            self._stats_due, self._stats_dirty = self.clock() + STATS_INTERVAL_S, False
            news.setdefault(0, EngineCoreOutputs()).scheduler_stats = self._ask("make_stats")
        return news

    def _dump_state(self, output: SchedulerOutput) -> None:
        """Into the log; a second fault must not hide the first."""
        try:
            counts, stats = self.scheduler.get_request_counts(), self.scheduler.make_stats()
        except Exception as error:  # noqa: BLE001 - it is named in the line
            counts, stats = (-1, -1), error  # type: ignore[assignment]
        logger.error(
            "step %d failed: %d rows, %d tokens, %d new, %d gone; %d running, %d waiting; stats %s",
            output.step_id, len(output.row), output.total_tokens, len(output.new), len(output.gone), *counts, stats,
        )  # fmt: skip

    def _ask(self, call: str, *args: Any) -> Any:
        """Call the scheduler; whatever it raises names it."""
        try:
            return getattr(self.scheduler, call)(*args)
        except Exception as error:
            raise self._blame("scheduler", call, error) from error

    def _blame(self, kind: str, call: str, error: Exception) -> TenonryError:
        """Name the plugin behind an exception; errors that name it already pass. There is no step after this."""
        if isinstance(error, PluginError):
            self._fault = error
        else:
            entry = self.plan.get(kind)
            self._fault = PluginFault(entry.name, entry.distribution, entry.version, call, error)
        return self._fault

    def shutdown(self) -> None:
        """Release everything; called once, also after a fault."""
        self._in_flight.clear()
        release(self.executor, self.scheduler, self.kv_connector)

    def call_workers(
        self, method: str, args: list[Any] | None = None, timeout: float | None = None
    ) -> list[Any]:
        """Call a worker method of the allow-list on every rank, with no step in flight."""
        self.collect_all()
        return self.executor.call(method, args or [], timeout)
