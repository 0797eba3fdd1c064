"""An executor that runs one worker in the same process. Engine process; no threads.

With `late` its futures resolve as late as the interface permits: at a call of `result`, or at the third of `done`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tenonry.errors import Unsupported
from tenonry.interfaces.executor import Executor, ExecutorContext
from tenonry.interfaces.plugin import PluginOptions
from tenonry.interfaces.worker import Worker, WorkerContext
from tenonry.kv_cache import KVCacheConfig, KVCacheGroup, MemoryReport
from tenonry.step import ModelRunnerOutput, SchedulerOutput


class InstantOptions(PluginOptions):
    """`depth`: steps that may be in flight. `late`: compute at a call of `result()`, or at the third of `done()`."""

    depth: int = 1
    late: bool = False


class LateFuture:
    """Resolves with all earlier ones, in step order, when `result` is called, or `done` for the third time."""

    __slots__ = ("_asked", "_error", "_output", "_run", "_value")

    def __init__(self, output: SchedulerOutput, run: Callable[[LateFuture], None]) -> None:
        self._output = output
        self._run = run
        self._value: ModelRunnerOutput | None = None
        self._error: Exception | None = None
        self._asked = 0

    def execute(self, worker: Worker) -> None:
        """Compute the step; a worker's exception is stored for `result`."""
        try:
            answer = worker.execute_model(self._output)
            self._value = answer if isinstance(answer, ModelRunnerOutput) else answer.result()
        except Exception as error:
            self._error = error

    def done(self) -> bool:
        self._asked += 1
        if self._asked > 2:
            self._run(self)
        return self._value is not None or self._error is not None

    def result(self, timeout: float | None = None) -> ModelRunnerOutput:
        self._run(self)
        if self._error is not None:
            raise self._error
        assert self._value is not None
        return self._value


class InstantExecutor(Executor):
    """One rank, in this thread. `worker` is the worker, for tests that inspect it."""

    Options = InstantOptions

    def __init__(self, context: ExecutorContext) -> None:
        super().__init__(context)
        given = context.options
        self.options = given if isinstance(given, InstantOptions) else InstantOptions()
        self.failure_callbacks: list[Callable[[str], None]] = []
        self._worker: Worker | None = None
        self._queue: deque[LateFuture] = deque()

    @property
    def max_concurrent_batches(self) -> int:
        return self.options.depth

    @property
    def worker(self) -> Worker:
        if self._worker is None:
            raise RuntimeError(
                "the executor has no worker: start() was not called, or shutdown() was"
            )
        return self._worker

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

    def execute_model(self, output: SchedulerOutput) -> LateFuture:
        future = LateFuture(output, self._run_until)
        self._queue.append(future)
        if not self.options.late:
            self._run_until(future)
        return future

    def call(
        self,
        method: str,
        args: Sequence[Any] = (),
        timeout: float | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        if self._queue:
            self._run_until(self._queue[-1])
        if method not in self.worker.rpc_methods:
            raise Unsupported(
                f"worker method '{method}' is not allowed; {sorted(self.worker.rpc_methods)} are"
            )
        return [self.worker.call(method, args, kwargs)]

    def on_failure(self, callback: Callable[[str], None]) -> None:
        self.failure_callbacks.append(callback)

    def fail(self, reason: str) -> None:
        """Report the death of a rank to the engine, as an executor with remote ranks would."""
        for callback in self.failure_callbacks:
            callback(reason)

    def check_health(self) -> None:
        self.worker.check_health()

    def resolved_plugins(self) -> dict[str, str]:
        return self.worker.resolved_plugins()

    def shutdown(self) -> None:
        self._queue.clear()
        if self._worker is not None:
            self._worker.shutdown()
            self._worker = None

    def _run_until(self, wanted: LateFuture) -> None:
        while wanted in self._queue:
            self._queue.popleft().execute(self.worker)


class NoFeedbackExecutor(InstantExecutor):
    """An executor like a pipeline of ranks: a row cannot be scheduled again before its sampled token is known."""

    feeds_back_tokens = False
