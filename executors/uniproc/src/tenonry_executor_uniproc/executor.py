"""The executor `uni`: the one rank of an engine, inside the engine's own process. A step is a plain method call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError
from tenonry.interfaces.executor import Executor, ExecutorContext
from tenonry.interfaces.worker import Worker, WorkerContext
from tenonry.kv_cache import KVCacheConfig, KVCacheGroup, MemoryReport
from tenonry.step import DoneFuture, ModelRunnerOutput, SchedulerOutput, StepFuture


class UniprocExecutor(Executor):
    """One worker, called directly. Refuses a world size above one."""

    @classmethod
    def check(cls, config: EngineConfig, options: object) -> None:
        if config.world_size != 1:
            raise ConfigError(
                f"executor 'uni' runs one rank, but tensor_parallel_size × pipeline_parallel_size = "
                f"{config.world_size}; use --executor mp (pip install tenonry-executor-multiproc)"
            )

    def __init__(self, context: ExecutorContext) -> None:
        super().__init__(context)
        self.check(context.config, context.options)
        self._worker: Worker | None = None

    @property
    def worker(self) -> Worker:
        """The worker; RuntimeError before `start` and after `shutdown`."""
        if self._worker is None:
            raise RuntimeError("the uni executor is not started")
        return self._worker

    @property
    def max_concurrent_batches(self) -> int:
        return self.worker.steps_in_flight if self.context.config.async_scheduling else 1

    def start(self) -> None:
        context = self.context
        self._worker = context.worker_class(
            WorkerContext(
                context.config,
                context.model,
                max_model_len=context.max_model_len,
                options=context.worker_options,
                engine_index=context.engine_index,
                engine_id=context.engine_id,
                kv_connector=context.kv_connector,
            )
        )
        self._worker.load()

    def kv_cache_groups(self) -> Sequence[Sequence[KVCacheGroup]]:
        return [self.worker.kv_cache_groups()]

    def available_memory(self) -> Sequence[MemoryReport]:
        return [self.worker.available_memory()]

    def initialize(self, kv_cache: KVCacheConfig) -> None:
        self.worker.initialize_cache(kv_cache)
        self.worker.warm_up()

    def execute_model(self, output: SchedulerOutput) -> StepFuture:
        result = self.worker.execute_model(output)
        return DoneFuture(result) if isinstance(result, ModelRunnerOutput) else result

    def call(
        self,
        method: str,
        args: Sequence[Any] = (),
        timeout: float | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call the worker directly; `timeout` cannot interrupt a call in the same thread and is ignored."""
        return [self.worker.call(method, args, kwargs)]

    def check_health(self) -> None:
        self.worker.check_health()

    def resolved_plugins(self) -> dict[str, str]:
        return self.worker.resolved_plugins()

    def shutdown(self) -> None:
        worker = self._worker
        self._worker = None
        if worker is not None:
            worker.shutdown()
