"""Worker: runs the model on one rank. Built by an executor, in a process of its choice.

The module that holds a worker class must import quickly; torch is imported in its methods.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from pydantic import BaseModel

from tenonry.errors import Unsupported
from tenonry.info import ModelInfo, PluginRecord, WorkerFacts
from tenonry.interfaces.plugin import Plugin, PluginContext
from tenonry.kv_cache import KVCacheConfig, KVCacheGroup, MemoryReport
from tenonry.step import ModelRunnerOutput, SchedulerOutput, StepFuture


@dataclass(slots=True)
class WorkerContext(PluginContext):
    """Inputs of a worker, which reads nothing from the environment.

    `rank` is the rank within the engine (0 … world_size−1) and `local_rank` the index of its device on the node.
    `rendezvous` is the URL where the ranks meet: `file://…` on one node, `tcp://host:port` across nodes, "" for one
    rank and for the rank that opens one (`open_rendezvous`). `kv_connector` is the plan's entry of the KV connector,
    whose worker half this rank builds, or None; `engine_id` is for the context of that half.
    """

    model: ModelInfo
    _: KW_ONLY
    max_model_len: int
    engine_index: int = 0
    engine_id: str = ""
    rank: int = 0
    local_rank: int = 0
    rendezvous: str = ""
    kv_connector: PluginRecord | None = None


def bind_arguments(
    method: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    """Bind the arguments of a call. Raises TypeError that names the method and its parameters."""
    signature = inspect.signature(method)
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "no arguments"
        raise TypeError(f"{method.__name__}: {error}; it takes {takes}") from None


class Worker(Plugin[WorkerContext], ABC):
    """One rank of one engine.

    Order of calls: constructor, `load`, `kv_cache_groups`, `available_memory`, `initialize_cache`, `warm_up`, then
    `execute_model` once per step in step order, `call` between steps, `shutdown` last and once, also after a failed
    start. `examine` may be called before `load`, or be all that is called.

    `capabilities` names what the worker supports beyond the start-up sequence; settings and calls of plugins require
    further ones (docs/how-to/write-a-worker.md lists them). With "kv_connector" the worker builds its half of a
    connector, calls `load` and `poll` before each step and `save` after it, and reports the result of `poll`; without
    it no connector can be chosen. "features", "media" and "grammar": it reads `features`, `media` and
    `structured_output` of a request, which is rejected otherwise; with "grammar" it compiles the grammars of
    `SchedulerOutput.prepare` and reports their completion. "rounds": it decodes several tokens in a step with
    `round_tokens` above 1, also of rows with grammars if it has "grammar"; others may ignore that number. "tasks":
    `call("tasks")` returns `EngineInfo.tasks`. A setting that a worker would ignore is rejected at startup: its field
    names the required capability. `rpc_methods` is the allow-list of `call`. `steps_in_flight`: maximum number of
    launched steps without a result. Exceptions in `execute_model` end the engine; failures of single rows are reported
    in the result instead.
    """

    capabilities: ClassVar[frozenset[str]] = frozenset()
    rpc_methods: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def preload(cls, model: ModelInfo, options: BaseModel) -> None:
        """Import the modules of `load`. Called in a process from which engines are forked.

        Must start no thread, open no device, no file for longer than the call, and keep nothing of the model; may raise
        anything, since `load` will raise it again. Without this method engines start in fresh interpreters.
        """

    @property
    def steps_in_flight(self) -> int:
        """Read after `load`."""
        return 1

    def open_rendezvous(self, host: str) -> str:
        """Bind a free port of `host`, in rank 0 before `load` with ranks on several nodes; returns `tcp://host:port`.

        The other ranks are then built with that as their `rendezvous`. Raises Unsupported if the worker runs on one
        node only.
        """
        raise Unsupported(
            f"worker {type(self).__name__} cannot open a rendezvous on {host}: it runs on one node only"
        )

    def examine(self) -> WorkerFacts:
        """Examine the model without reading a weight, opening a device or connecting to other ranks. A folder with a
        config.json and no weights is enough.

        Raises ModelError, as `load` would, if known by then: with the model, the offending layer and a remedy.
        """
        return WorkerFacts(architecture=self.context.model.architecture)

    @abstractmethod
    def load(self) -> None:
        """Load the model to the device. Raises ModelError with the file or layer and the remedy."""

    @abstractmethod
    def kv_cache_groups(self) -> Sequence[KVCacheGroup]:
        """The KV groups of this rank's layers."""

    @abstractmethod
    def available_memory(self) -> MemoryReport:
        """Bytes that the KV cache may take."""

    @abstractmethod
    def initialize_cache(self, kv_cache: KVCacheConfig) -> None:
        """Allocate the KV cache."""

    def warm_up(self) -> None:
        """Run initialisation that would delay the first request."""

    @abstractmethod
    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput | StepFuture:
        """Apply the step's changes, compute, sample. All K/V of a layer is written before any row reads it."""

    def call(
        self, method: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run a method of `rpc_methods` by name.

        Raises Unsupported for any other name, TypeError for wrong arguments.
        """
        if method not in self.rpc_methods:
            raise Unsupported(
                f"worker {type(self).__name__} does not support '{method}'; "
                f"it supports {sorted(self.rpc_methods) or 'no calls'}"
            )
        called = getattr(self, method)
        bound = bind_arguments(called, args, kwargs or {})
        return called(*bound.args, **bound.kwargs)

    def resolved_plugins(self) -> dict[str, str]:
        """Return plugins of this worker's own extension points: kind → name with version. Called after `warm_up`."""
        return {}

    def check_health(self) -> None:
        """Raise if the rank cannot compute."""

    def shutdown(self) -> None:
        """Free the device. Called once."""
