"""Executor: starts the ranks of one engine and sends steps to them. Engine process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from pydantic import BaseModel

from tenonry.info import ModelInfo, PluginRecord
from tenonry.interfaces.plugin import NO_OPTIONS, Plugin, PluginContext
from tenonry.interfaces.worker import Worker
from tenonry.kv_cache import KVCacheConfig, KVCacheGroup, MemoryReport
from tenonry.step import SchedulerOutput, StepFuture


@dataclass(slots=True)
class ExecutorContext(PluginContext):
    """Inputs of an executor. `worker_target` is "module:Class", for ranks in other processes;
    `worker_class` the class itself, for a rank in this one; `plan_text` the plugin plan to hand to children;
    `engine_id` the name that the KV connectors of this engine share, for the context of every worker; `starter` a
    `ProcessStarter` for ranks in child processes, or None for fresh interpreters.
    """

    model: ModelInfo
    _: KW_ONLY
    max_model_len: int
    worker_class: type[Worker]
    worker_target: str = ""
    worker_options: BaseModel = NO_OPTIONS
    engine_index: int = 0
    engine_id: str = ""
    plan_text: str = ""
    kv_connector: PluginRecord | None = None
    starter: Any = None  # its type belongs to `tenonry.launch`, above the interfaces


class Executor(Plugin[ExecutorContext], ABC):
    """Runs the ranks of one engine.

    Order of calls: constructor, `on_failure`, `start`, `kv_cache_groups`, `available_memory`, `initialize`, then
    `execute_model` once per step in step order, `shutdown` last and once, also after a failed start.

    `max_concurrent_batches` (read after `initialize`): maximum steps in flight. `feeds_back_tokens`: a row may be
    scheduled again before its sampled token is known (an executor may set it for itself, once, in its constructor).
    `is_local`: all ranks run on the node of their engine. `capabilities`: what `call` supports, as its workers declare,
    "lora" only where `max_loras` is not 0. `runs_elsewhere`: `execute_model` only sends the step to other processes, so
    the engine checks it against the scheduler's contract during execution. `starts_ranks`: the ranks are children of
    the engine, from the `starter` of the context.

    An exception is attributed to the executor if one of its methods is the innermost of executor and worker in the
    traceback, else to the worker; also with an attribute `plugin`: set it, "" if unknown, on errors received from ranks
    in other processes.
    """

    is_local: ClassVar[bool] = True
    feeds_back_tokens: bool = True
    runs_elsewhere: bool = False
    starts_ranks: bool = False

    @property
    def max_concurrent_batches(self) -> int:
        return 1

    @property
    def capabilities(self) -> frozenset[str]:
        declared = self.context.worker_class.capabilities
        return declared if self.context.config.max_loras else declared - {"lora"}

    @abstractmethod
    def start(self) -> None:
        """Start every rank and load the model. Raises with the failing rank's own error text."""

    @abstractmethod
    def kv_cache_groups(self) -> Sequence[Sequence[KVCacheGroup]]:
        """KV groups, one entry per rank."""

    @abstractmethod
    def available_memory(self) -> Sequence[MemoryReport]:
        """Bytes for the KV cache, one entry per rank."""

    @abstractmethod
    def initialize(self, kv_cache: KVCacheConfig) -> None:
        """Allocate the caches on every rank and warm up."""

    @abstractmethod
    def execute_model(self, output: SchedulerOutput) -> StepFuture:
        """Launch one step; the future resolves in step order."""

    @abstractmethod
    def call(
        self,
        method: str,
        args: Sequence[Any] = (),
        timeout: float | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a worker method of the allow-list on every rank; one result per rank. Raises Unsupported."""

    def on_failure(self, callback: Callable[[str], None]) -> None:
        """Call `callback(reason)`, from any thread, when a rank dies. One-process executors never do."""

    def check_health(self) -> None:
        """Raise if a rank cannot compute. Called between two steps; must not wait for steps in flight.

        The deadline is 25 s, below the client's of 30 s, so that the text arrives. With ranks in other processes, use
        their latest results: raise TimeoutError that names the late ranks when a step is overdue by 25 s; query the
        ranks, within the same limit, only without a step in flight or a recent result.
        """

    def resolved_plugins(self) -> dict[str, str]:
        """Return the plugins of the workers' own extension points, from the first rank."""
        return {}

    @abstractmethod
    def shutdown(self) -> None:
        """Stop every rank and release all resources."""
