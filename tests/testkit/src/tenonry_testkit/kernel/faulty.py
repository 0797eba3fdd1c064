"""Plugins of four kinds that raise on request, and record calls. Any process; no torch.

Options carry the faults, so that a plugin can be named in a configuration and fails in any process that builds it.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np

from tenonry.errors import ModelError, RequestError
from tenonry.interfaces.executor import ExecutorContext
from tenonry.interfaces.kv_connector import KVConnectorContext, KVConnectorRole
from tenonry.interfaces.plugin import PluginOptions
from tenonry.interfaces.scheduler import SchedulerContext
from tenonry.interfaces.worker import WorkerContext
from tenonry.kv_cache import KVCacheConfig, KVCacheGroup, MemoryReport
from tenonry.step import ModelRunnerOutput, SchedulerOutput
from tenonry_scheduling import StepBuilder
from tenonry_testkit.fakes import FakeWorker, InstantExecutor, MemoryConnector, ReferenceScheduler
from tenonry_testkit.fakes.executor import InstantOptions
from tenonry_testkit.fakes.worker import FakeWorkerOptions

HELD_STEP_S = 0.3
CALLS: list[str] = []  # "Class.method" of each call in this process, in order


def failing_on_request(methods: tuple[str, ...]) -> Callable[[type], type]:
    """Return a class decorator: calls of `methods` are recorded in `CALLS`, and raise RuntimeError if `self.fail` names
    them.
    """

    def decorate(cls: type) -> type:
        for name in methods:
            setattr(cls, name, _failing_method(cls, name, getattr(cls, name)))
        return cls

    return decorate


def _failing_method(cls: type, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        CALLS.append(f"{cls.__name__}.{name}")
        if name in self.fail.split():
            raise RuntimeError(f"{name} failed on purpose")
        return method(self, *args, **kwargs)

    return called


class SchedulerOptions(PluginOptions):
    """`fail`: methods that raise, separated by spaces, "constructor" among them. `refuse`: a request id to reject.

    `rows`: number of nonexistent rows to schedule. `idle`: never schedule anything.
    """

    fail: str = ""
    refuse: str = ""
    rows: int = 0
    idle: bool = False


SCHEDULER_METHODS = (
    "add_request", "finish_requests", "schedule", "update_from_output", "has_requests", "get_request_counts",
    "make_stats", "reset_prefix_cache", "shutdown",
)  # fmt: skip


@failing_on_request(SCHEDULER_METHODS)
class FaultyScheduler(ReferenceScheduler):
    """The reference scheduler with the faults of `SchedulerOptions`."""

    Options = SchedulerOptions

    def __init__(self, context: SchedulerContext) -> None:
        options = context.options
        assert isinstance(options, SchedulerOptions)
        self.fail = options.fail
        self.options = options
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
            output.row = rows
            output.num_tokens = np.ones_like(rows)
            output.next_token = np.zeros_like(rows)
            output.samples = np.ones(len(rows), np.bool_)
            output.total_tokens = len(rows)
        return output


class RenamedScheduler(FaultyScheduler):
    """Breaks the contract, and changes the plugin name in its context: the kernel must name the real plugin."""

    def __init__(self, context: SchedulerContext) -> None:
        super().__init__(context)
        self.context = dataclasses.replace(context, plugin_name="another plugin")


class ExecutorOptions(InstantOptions):
    """`fail` as in `SchedulerOptions`. `ranks`: report memory for this many ranks, though there is one."""

    fail: str = ""
    ranks: int = 1


EXECUTOR_METHODS = (
    "start", "kv_cache_groups", "available_memory", "initialize", "execute_model", "on_failure", "check_health",
    "shutdown",
)  # fmt: skip


@failing_on_request(EXECUTOR_METHODS)
class FaultyExecutor(InstantExecutor):
    """One worker in this process, with the faults of `ExecutorOptions`."""

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
    """Reports a dead rank on the call `lose_rank`, from its own thread, like executors with rank processes."""

    def call(
        self, method: str, args: Any = (), timeout: float | None = None, kwargs: Any = None
    ) -> list[Any]:
        if method == "lose_rank":
            threading.Timer(0.05, self.fail, ["rank 1 died"]).start()
            return []
        return super().call(method, args, timeout, kwargs)


class WorkerOptions(FakeWorkerOptions):
    """`fail` as in `SchedulerOptions`. `farewell`: a file to write on shutdown.

    `held`: a file; while it exists each step takes `HELD_STEP_S`, so that a stream of 200 tokens ends after it is gone.
    """

    fail: str = ""
    farewell: str = ""
    held: str = ""


class StillWorker(FakeWorker):
    """Worker without capabilities, such as moving KV blocks."""

    capabilities: ClassVar[frozenset[str]] = frozenset()


@failing_on_request(("load", "initialize_cache", "execute_model", "shutdown"))
class FaultyWorker(FakeWorker):
    """Permits every call of the kernel, and some with results that are hard to encode."""

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

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput:
        held = self.context.options.held  # type: ignore[attr-defined]
        if held and Path(held).exists():
            time.sleep(HELD_STEP_S)
        return super().execute_model(output)

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

    def save_tensorized_model(self, tensorizer_config: dict[str, Any]) -> None:
        CALLS.append(f"tensorize {tensorizer_config}")

    def execute_dummy_batch(self) -> None:
        CALLS.append("dummy")
        super().execute_dummy_batch()


class FirstEngineWorker(FakeWorker):
    """Fails to load in every engine but engine 0."""

    def load(self) -> None:
        if self.context.engine_index:
            raise ModelError("no weights for this one")
        super().load()


class SoloWorker(FakeWorker):
    """Worker without a dummy batch, which cannot run in lockstep with other engines."""

    capabilities: ClassVar[frozenset[str]] = frozenset()


class UnlikeWorker(FakeWorker):
    """Supports another block size in each engine."""

    def kv_cache_groups(self) -> list[KVCacheGroup]:
        sizes = (16 << self.context.engine_index,)
        return [
            msgspec.structs.replace(group, block_sizes=sizes) for group in super().kv_cache_groups()
        ]


class CountingWorker(FakeWorker):
    """Counts the steps in which its model runs, without those that only remove rows. Accepts features and media, and
    ignores them.
    """

    capabilities = FakeWorker.capabilities | {"features", "media"}
    passes = 0

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput:
        self.passes += len(output.row) > 0
        return super().execute_model(output)

    def count_steps(self) -> list[int]:
        return [self.passes, self.dummy_steps]


class SleepyWorker(CountingWorker):
    """Sleeps, and fails in a step during sleep. Engines with a higher index take longer for dummy steps and to wake up.
    `at_turns`: the count of all its steps when each sleep began, and when it ended.
    """

    capabilities = FakeWorker.capabilities | {"sleep"}
    rpc_methods = FakeWorker.rpc_methods | {"sleep", "wake_up", "is_sleeping", "steps_at_turns"}

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self._is_asleep = False
        self._at_turns: list[int] = []

    def sleep(self, level: int = 1) -> None:
        self._is_asleep = True
        self._at_turns.append(sum(self.count_steps()))

    def wake_up(self, tags: list[str] | None = None) -> None:
        time.sleep(0.1 * self.context.engine_index)
        self._at_turns.append(sum(self.count_steps()))
        self._is_asleep = False

    def is_sleeping(self) -> bool:
        return self._is_asleep

    def steps_at_turns(self) -> list[int]:
        return self._at_turns

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput:
        self._must_be_awake()
        return super().execute_model(output)

    def execute_dummy_batch(self) -> None:
        self._must_be_awake()
        time.sleep(0.005 * self.context.engine_index)
        super().execute_dummy_batch()

    def _must_be_awake(self) -> None:
        if self._is_asleep:
            raise RuntimeError("a step came during sleep")


class ConnectorOptions(PluginOptions):
    fail: str = ""


@failing_on_request(("shutdown",))
class FaultyConnector(MemoryConnector):
    """Fails in the constructor of the scheduler half, or in `shutdown`. `contexts`: those of all its instances."""

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
