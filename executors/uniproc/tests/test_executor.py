"""The executor `uni`: one worker, called in order, and stopped once (EC-16)."""

from __future__ import annotations

from typing import Any

import pytest

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError, Unsupported
from tenonry.info import ModelInfo
from tenonry.interfaces.executor import ExecutorContext
from tenonry.interfaces.worker import Worker, WorkerContext
from tenonry.kv_cache import KVCacheConfig, KVCacheGroup, MemoryReport
from tenonry.step import DoneFuture, ModelRunnerOutput, SchedulerOutput, StepFuture
from tenonry_executor_uniproc.executor import UniprocExecutor

MODEL = ModelInfo(name="m", path="", architecture="A", max_model_len=64, vocab_size=10)
KV_CACHE = KVCacheConfig(
    num_blocks=4, block_size=16, groups=(KVCacheGroup(layers=("a",)),), max_model_len=64
)


class Recorder(Worker):
    """Records its calls; answers steps immediately or later."""

    rpc_methods = frozenset({"double"})
    capabilities = frozenset({"profile"})
    later = False

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self.calls: list[str] = []

    @property
    def steps_in_flight(self) -> int:
        return 3

    def load(self) -> None:
        self.calls.append("load")

    def kv_cache_groups(self) -> list[KVCacheGroup]:
        return list(KV_CACHE.groups)

    def available_memory(self) -> MemoryReport:
        return MemoryReport(123, is_host=True)

    def initialize_cache(self, kv_cache: KVCacheConfig) -> None:
        self.calls.append(f"cache {kv_cache.num_blocks}")

    def warm_up(self) -> None:
        self.calls.append("warm up")

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput | StepFuture:
        result = ModelRunnerOutput(step_id=output.step_id)
        return DoneFuture(result) if self.later else result

    def double(self, number: int) -> int:
        return 2 * number

    def shutdown(self) -> None:
        self.calls.append("shutdown")


class LaterRecorder(Recorder):
    later = True


def make(worker: type[Worker] = Recorder, **settings: Any) -> UniprocExecutor:
    config = EngineConfig(model="m", **settings)
    return UniprocExecutor(ExecutorContext(config, MODEL, max_model_len=64, worker_class=worker))


def test_start_up_reaches_the_worker_in_order():
    executor = make()
    executor.start()
    worker = executor.worker
    assert executor.kv_cache_groups() == [list(KV_CACHE.groups)]
    assert executor.available_memory() == [MemoryReport(123, is_host=True)]
    executor.initialize(KV_CACHE)
    executor.shutdown()
    executor.shutdown()
    assert worker.calls == ["load", "cache 4", "warm up", "shutdown"]


@pytest.mark.parametrize("worker", [Recorder, LaterRecorder])
def test_a_step_gives_a_future_whether_the_worker_answers_now_or_later(worker):
    executor = make(worker)
    executor.start()
    future = executor.execute_model(SchedulerOutput(step_id=7))
    assert future.done()
    assert future.result().step_id == 7


@pytest.mark.parametrize(("enabled", "depth"), [(True, 3), (False, 1)])
def test_async_scheduling_decides_how_many_steps_are_in_flight(enabled, depth):
    executor = make(async_scheduling=enabled)
    executor.start()
    assert executor.max_concurrent_batches == depth


def test_calls_reach_only_the_allow_list():
    """EC-13: a name of the worker's list, or a clear error."""
    executor = make()
    executor.start()
    assert executor.call("double", [21]) == [42]
    assert executor.capabilities == {"profile"}
    with pytest.raises(Unsupported, match=r"'shutdown'.*\['double'\]"):
        executor.call("shutdown")


def test_more_than_one_rank_is_refused_with_the_remedy():
    with pytest.raises(ConfigError, match=r"= 2; use --executor mp"):
        make(tensor_parallel_size=2)


def test_use_before_start_says_so():
    with pytest.raises(RuntimeError, match="not started"):
        make().execute_model(SchedulerOutput(step_id=0))
