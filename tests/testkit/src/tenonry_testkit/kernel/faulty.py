"""Plugins with moods: they raise where a test says so, and write down what is called. Any process; no torch."""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np

from tenonry.errors import ModelError, RequestError
from tenonry.interfaces.executor import ExecutorContext
from tenonry.interfaces.kv_connector import KVConnectorContext, KVConnectorRole
from tenonry.interfaces.plugin import PluginOptions
from tenonry.interfaces.scheduler import SchedulerContext
from tenonry.kv_cache import KVCacheConfig, KVCacheGroup, MemoryReport
from tenonry.step import ModelRunnerOutput, SchedulerOutput
from tenonry_scheduling import StepBuilder
from tenonry_testkit.fakes import FakeWorker, InstantExecutor, MemoryConnector, ReferenceScheduler
from tenonry_testkit.fakes.executor import InstantOptions
from tenonry_testkit.fakes.worker import FakeWorkerOptions

CALLS: list[str] = []  # what the parts of this process were asked, in order


def moody(methods: tuple[str, ...]) -> Any:
    """Class decorator: note each call, and raise `RuntimeError` in those that the options name."""

    def decorate(cls: type) -> type:
        for name in methods:
            setattr(cls, name, _moody_method(cls, name, getattr(cls, name)))
        return cls

    return decorate


def _moody_method(cls: type, name: str, method: Any) -> Any:
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        CALLS.append(f"{cls.__name__}.{name}")
        if name in self.fail.split():
            raise RuntimeError(f"{name} failed on purpose")
        return method(self, *args, **kwargs)

    return called


class SchedulerOptions(PluginOptions):
    """`fail`: the method that raises, "constructor" for that one. `refuse`: a request id that cannot run here."""

    fail: str = ""
    refuse: str = ""
    rows: int = 0  # schedule this many rows that do not exist
    idle: bool = False  # schedule nothing, ever


SCHEDULER_METHODS = (
    "add_request", "finish_requests", "schedule", "update_from_output", "has_requests", "get_request_counts",
    "make_stats", "reset_prefix_cache", "shutdown",
)  # fmt: skip


@moody(SCHEDULER_METHODS)
class FaultyScheduler(ReferenceScheduler):
    Options = SchedulerOptions

    def __init__(self, context: SchedulerContext) -> None:
        options = context.options
        assert isinstance(options, SchedulerOptions)
        self.fail, self.options = options.fail, options
        if self.fail == "constructor":
            raise RuntimeError("constructor failed on purpose")
        super().__init__(context)

    def add_request(self, request: Any) -> None:
        if request.request_id == self.options.refuse:
            raise RequestError("this one never", "prompt")
        super().add_request(request)

    def choose(self, step: StepBuilder) -> None:
        if not self.options.idle:
            super().choose(step)

    def schedule(self) -> SchedulerOutput:
        output = super().schedule()
        if self.options.rows:
            rows = np.arange(self.options.rows, dtype=np.int32)
            output.row, output.num_tokens, output.next_token = (
                rows,
                np.ones_like(rows),
                np.zeros_like(rows),
            )
            output.samples, output.total_tokens = np.ones(len(rows), np.bool_), len(rows)
        return output


class RenamedScheduler(FaultyScheduler):
    """Breaks the contract, and would have somebody else named for it."""

    def __init__(self, context: SchedulerContext) -> None:
        super().__init__(context)
        self.context = dataclasses.replace(context, plugin_name="somebody else")


class ExecutorOptions(InstantOptions):
    """`fail` as above. `ranks`: report memory for this many ranks, whatever the truth."""

    fail: str = ""
    ranks: int = 1


EXECUTOR_METHODS = (
    "start", "kv_cache_groups", "available_memory", "initialize", "execute_model", "on_failure", "check_health",
    "shutdown",
)  # fmt: skip


@moody(EXECUTOR_METHODS)
class FaultyExecutor(InstantExecutor):
    Options = ExecutorOptions

    def __init__(self, context: ExecutorContext) -> None:
        options = context.options
        assert isinstance(options, ExecutorOptions)
        self.fail = options.fail
        if self.fail == "constructor":
            raise RuntimeError("constructor failed on purpose")
        super().__init__(context)

    def available_memory(self) -> list[MemoryReport]:
        return [*super().available_memory()] * self.options.ranks  # type: ignore[attr-defined]

    def initialize(self, kv_cache: KVCacheConfig) -> None:
        CALLS.append(f"num_blocks={kv_cache.num_blocks}")
        super().initialize(kv_cache)


class LosingExecutor(InstantExecutor):
    """Loses a rank when it is told to, as an executor with ranks in other processes would: from a thread of its own."""

    def call(
        self, method: str, args: Any = (), timeout: float | None = None, kwargs: Any = None
    ) -> list[Any]:
        if method == "lose_rank":
            threading.Timer(0.05, self.fail, ["rank 1 died"]).start()
            return []
        return super().call(method, args, timeout, kwargs)


class WorkerOptions(FakeWorkerOptions):
    """`farewell`: a file to write when it is released."""

    fail: str = ""
    farewell: str = ""


class StillWorker(FakeWorker):
    """Moves no KV blocks."""

    capabilities: ClassVar[frozenset[str]] = frozenset()


@moody(("load", "initialize_cache", "execute_model", "shutdown"))
class FaultyWorker(FakeWorker):
    """Also answers calls that a wire has trouble with."""

    Options = WorkerOptions
    capabilities: ClassVar[frozenset[str]] = frozenset(
        {"profile", "sleep", "lora", "save", "dummy_batch", "kv_connector"}
    )
    rpc_methods: ClassVar[frozenset[str]] = frozenset(
        [
            "profile",
            "count_steps",
            "data_parallel_size",
            "echo",
            "nap",
            "too_large",
            "unknown_type",
            "lone_surrogate",
            "raises",
            "data",
            "sleep",
            "wake_up",
            "is_sleeping",
            "add_lora",
            "remove_lora",
            "list_loras",
            "pin_lora",
            "save_sharded_state",
            "save_tensorized_model",
            "execute_dummy_batch",
        ]
    )

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.fail = context.options.fail
        self.asleep = 0
        self.loras: list[str] = []

    def shutdown(self) -> None:
        if self.context.options.farewell:  # type: ignore[attr-defined]
            Path(self.context.options.farewell).write_text("released", "utf-8")  # type: ignore[attr-defined]
        super().shutdown()

    def data_parallel_size(self) -> int:
        return self.context.config.data_parallel_size

    def nap(self, seconds: float) -> None:
        time.sleep(seconds)

    def too_large(self) -> int:
        return 2**70

    def unknown_type(self) -> object:
        return object()

    def lone_surrogate(self) -> str:
        return "\ud800"

    def raises(self) -> None:
        raise ValueError("worker says no")

    def data(self) -> dict[str, Any]:
        return {"array": np.arange(3), "bytes": b"\x00", "number": np.float32(0.5)}

    def sleep(self, level: int) -> None:
        self.asleep = level

    def wake_up(self, tags: list[str] | None) -> None:
        self.asleep = 0

    def is_sleeping(self) -> bool:
        return bool(self.asleep)

    def add_lora(self, name: str, path: str) -> bool:
        self.loras.append(name)
        return True

    def remove_lora(self, name: str) -> bool:
        self.loras.remove(name)
        return True

    def list_loras(self) -> list[str]:
        return self.loras

    def pin_lora(self, name: str) -> bool:
        return name in self.loras

    def save_sharded_state(self, path: str, pattern: str | None, max_size: int | None) -> None:
        CALLS.append(f"save {path} {pattern} {max_size}")

    def save_tensorized_model(self, options: dict[str, Any]) -> None:
        CALLS.append(f"save {options}")

    def execute_dummy_batch(self) -> None:
        CALLS.append("dummy")
        super().execute_dummy_batch()


class FirstEngineWorker(FakeWorker):
    """Loads in engine 0, and in no other."""

    def load(self) -> None:
        if self.context.engine_index:
            raise ModelError("no weights for this one")
        super().load()


class SoloWorker(FakeWorker):
    """Cannot step together with others."""

    capabilities: ClassVar[frozenset[str]] = frozenset()


class UnlikeWorker(FakeWorker):
    """Can do other blocks in each engine."""

    def kv_cache_groups(self) -> list[KVCacheGroup]:
        sizes = (16 << self.context.engine_index,)
        return [
            msgspec.structs.replace(group, block_sizes=sizes) for group in super().kv_cache_groups()
        ]


class CountingWorker(FakeWorker):
    """Counts how often its model runs: a step that only takes leave of rows is none, as expert layers see it."""

    passes = 0

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput:
        self.passes += len(output.row) > 0
        return super().execute_model(output)

    def count_steps(self) -> list[int]:
        return [self.passes, self.dummy_steps]


class ConnectorOptions(PluginOptions):
    fail: str = ""


@moody(("shutdown",))
class FaultyConnector(MemoryConnector):
    Options = ConnectorOptions
    contexts: ClassVar[list[KVConnectorContext]] = []

    def __init__(self, context: KVConnectorContext) -> None:
        options = context.options
        assert isinstance(options, ConnectorOptions)
        self.fail = options.fail
        if self.fail == "constructor" and context.role is KVConnectorRole.SCHEDULER:
            raise RuntimeError("constructor failed on purpose")
        self.contexts.append(context)
        super().__init__(context)
