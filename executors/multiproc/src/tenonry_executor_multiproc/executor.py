"""The executor `mp`: one process per rank of an engine, all on this node. Engine process.

Ranks are numbered as torch's groups expect: those of one pipeline stage are neighbours. The first rank of the last
stage is the driver, the only one whose results travel back.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tenonry.errors import ConfigError, EngineDeadError, LaunchError
from tenonry.info import PluginRecord
from tenonry.interfaces.executor import Executor, ExecutorContext
from tenonry.kv_cache import KVCacheConfig, KVCacheGroup, MemoryReport
from tenonry.plugin.plan import PluginPlan
from tenonry.step import SchedulerOutput, StepFuture
from tenonry_executor_multiproc.machine import (
    THREADS_VARIABLE,
    Rendezvous,
    threads_per_rank,
    usable_cores,
)
from tenonry_executor_multiproc.packets import RankCall
from tenonry_executor_multiproc.rank import RankSetup
from tenonry_executor_multiproc.ranks import RankGroup

logger = logging.getLogger("tenonry.executor.mp")
HEALTH_TIMEOUT_S = 25.0
RECENT_S = 3.0  # an answer of that age proves that the ranks are healthy
START_SHARE = (
    0.9  # of start_timeout: the error names a rank before the front end gives up on the engine
)
# Beyond one per pipeline stage: more steps than any worker keeps in flight, and a call.
SPARE_SLOTS = 6


class MultiprocExecutor(Executor):
    """The ranks of an engine as processes of this node. For one thread; `on_failure` alone is called from another."""

    runs_elsewhere = True
    starts_ranks = True

    def __init__(self, context: ExecutorContext) -> None:
        super().__init__(context)
        self._config = context.config
        if self._config.pipeline_parallel_size > 1:
            self.feeds_back_tokens = False  # the first stage never sees the last one's samples
        if context.kv_connector is not None and not isinstance(context.kv_connector, PluginRecord):
            raise ConfigError(
                f"executor 'mp' hands the plan's entry of the KV connector to its ranks, not a "
                f"{type(context.kv_connector).__name__}; use --executor uni with one that is built already"
            )
        self._group: RankGroup | None = None
        self._rendezvous: Rendezvous | None = None
        self._on_failure: Callable[[str], None] | None = None
        self._steps_in_flight = 1
        self._is_shut_down = False

    @property
    def ranks(self) -> RankGroup:
        """The ranks; RuntimeError before `start`, EngineDeadError after `shutdown`."""
        if self._is_shut_down:
            raise EngineDeadError("the mp executor is shut down")
        if self._group is None:
            raise RuntimeError("the mp executor is not started")
        return self._group

    @property
    def max_concurrent_batches(self) -> int:
        if not self._config.async_scheduling:
            return 1
        return max(self._steps_in_flight, self._config.pipeline_parallel_size)

    def on_failure(self, callback: Callable[[str], None]) -> None:
        self._on_failure = callback

    def _report(self, reason: str) -> None:
        if self._on_failure is not None:
            self._on_failure(reason)

    # ------------------------------------------------------------------ start
    def start(self) -> None:
        config = self._config
        deadline = time.monotonic() + START_SHARE * config.start_timeout
        names = [f"worker {self.context.engine_index}.{rank}" for rank in range(config.world_size)]
        self._rendezvous = Rendezvous(config.world_size)
        self._group = group = RankGroup(
            names,
            self._driver,
            num_slots=config.pipeline_parallel_size + SPARE_SLOTS,
            step_timeout=config.step_timeout,
            merges_transfers=self.context.kv_connector is not None and config.world_size > 1,
            on_death=self._report,
            starter=self.context.starter,
        )
        with _starting():
            group.start(self._make_setup(), self._environment(), self._rendezvous)
            group.hello(deadline - time.monotonic())
            self._steps_in_flight = min(group.task("load", int, deadline - time.monotonic()))
        self._rendezvous.close()
        group.started()

    @property
    def _driver(self) -> int:
        return self._config.world_size - self._config.tensor_parallel_size

    def _make_setup(self) -> Callable[[int, str, int], RankSetup]:
        context, rendezvous = self.context, self._rendezvous
        config_text = self._config.model_dump_json()
        worker = PluginPlan.decode(context.plan_text).find("worker") if context.plan_text else None
        target = (
            context.worker_target
            or f"{context.worker_class.__module__}:{context.worker_class.__qualname__}"
        )

        def make(rank: int, reader: str, answers: int) -> RankSetup:
            return RankSetup(
                name=f"worker {context.engine_index}.{rank}",
                config_text=config_text,
                model=context.model,
                max_model_len=context.max_model_len,
                worker=worker or PluginRecord(kind="worker", name=target, target=target),
                worker_options=context.worker_options.model_dump_json(),
                kv_connector=context.kv_connector,
                engine_index=context.engine_index,
                engine_id=context.engine_id,
                rank=rank,
                is_driver=rank == self._driver,
                rendezvous=rendezvous.url if rendezvous else "",
                reader=reader,
                answers=answers,
            )

        return make

    def _environment(self) -> dict[str, str]:
        threads = threads_per_rank(self._config)
        if threads is None:
            return {}
        logger.info(
            "%s=%d for each of %d ranks on %d cores; set it to have another number",
            THREADS_VARIABLE, threads, self._config.world_size, usable_cores(),
        )  # fmt: skip
        return {THREADS_VARIABLE: str(threads)}

    def kv_cache_groups(self) -> Sequence[Sequence[KVCacheGroup]]:
        return self._task("kv_cache_groups", list[KVCacheGroup])

    def available_memory(self) -> Sequence[MemoryReport]:
        return self._task("available_memory", MemoryReport)

    def initialize(self, kv_cache: KVCacheConfig) -> None:
        self._task("initialize", None, kv_cache)

    def resolved_plugins(self) -> dict[str, str]:
        resolved: dict[str, str] = self._task("resolved_plugins", dict[str, str])[0]
        return resolved

    def _task(self, method: str, kind: Any, *args: Any) -> list[Any]:
        with _starting():
            return self.ranks.task(method, kind, START_SHARE * self._config.start_timeout, *args)

    # ------------------------------------------------------------------ work
    def execute_model(self, output: SchedulerOutput) -> StepFuture:
        return self.ranks.launch(output)

    def call(
        self,
        method: str,
        args: Sequence[Any] = (),
        timeout: float | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """As `Executor.call`; without `timeout` a call may take as long as a start. TimeoutError names late ranks."""
        call = RankCall(method, list(args), dict(kwargs or {}))
        return self.ranks.call(call, self._config.start_timeout if timeout is None else timeout)

    def check_health(self) -> None:
        """Raise the error of a rank, TimeoutError if one does not answer within 5 s, or EngineDeadError."""
        self.ranks.check_health(HEALTH_TIMEOUT_S, RECENT_S)

    def shutdown(self) -> None:
        self._is_shut_down = True
        if self._group is not None:
            self._group.stop()
        if self._rendezvous is not None:
            self._rendezvous.close()


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    """A start fails with our own errors as they are; everything else is a LaunchError with the rank's text."""
    try:
        yield
    except EngineDeadError as error:
        raise LaunchError(f"{error}; see its log lines") from error
    except TimeoutError as error:
        raise LaunchError(f"{error}; raise --start-timeout if loading is slow") from error
    except (OSError, RuntimeError, TypeError, ValueError, MemoryError) as error:
        if isinstance(error, ConfigError):
            raise
        raise LaunchError(str(error)) from error
