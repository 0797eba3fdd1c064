"""An executor with one worker, in the engine's process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tenonry.interfaces.executor import Executor, ExecutorContext
from tenonry.interfaces.worker import Worker, WorkerContext
from tenonry.kv_cache import KVCacheConfig, KVCacheGroup, MemoryReport
from tenonry.step import DoneFuture, ModelRunnerOutput, SchedulerOutput, StepFuture


class SoloExecutor(Executor):
    """Calls its worker directly."""

    def __init__(self, context: ExecutorContext) -> None:
        super().__init__(context)
        made = WorkerContext(
            context.config,
            context.model,
            max_model_len=context.max_model_len,
            options=context.worker_options,
        )
        self._worker: Worker = context.worker_class(made)

    def start(self) -> None:
        self._worker.load()

    def kv_cache_groups(self) -> Sequence[Sequence[KVCacheGroup]]:
        return [self._worker.kv_cache_groups()]

    def available_memory(self) -> Sequence[MemoryReport]:
        return [self._worker.available_memory()]

    def initialize(self, kv_cache: KVCacheConfig) -> None:
        self._worker.initialize_cache(kv_cache)

    def execute_model(self, output: SchedulerOutput) -> StepFuture:
        result = self._worker.execute_model(output)
        assert isinstance(result, ModelRunnerOutput)
        return DoneFuture(result)

    def call(
        self,
        method: str,
        args: Sequence[Any] = (),
        timeout: float | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        return [self._worker.call(method, args, kwargs)]

    def shutdown(self) -> None:
        self._worker.shutdown()
