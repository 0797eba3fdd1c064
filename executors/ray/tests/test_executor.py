"""The executor `ray`: the conformance suite with two ranks in a real Ray, and ranks that fail."""

from __future__ import annotations

import os
import queue
import signal
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError, EngineDeadError, LaunchError
from tenonry.info import PluginRecord
from tenonry.interfaces.executor import ExecutorContext
from tenonry.plugin.plan import PluginPlan
from tenonry.sampling_params import SamplingParams
from tenonry.step import NewRow, SchedulerOutput
from tenonry_executor_ray import executor as executor_module
from tenonry_executor_ray.executor import RayExecutor
from tenonry_executor_ray.options import RayExecutorOptions
from tenonry_testkit.executor import ExecutorContract
from tenonry_testkit.fakes.model import fake_model
from tenonry_testkit.fakes.worker import FakeWorker, FakeWorkerOptions
from tenonry_testkit.spec import HarnessSpec

pytestmark = pytest.mark.timeout(120)
PATIENCE_S = 60.0  # for hangs: Ray starts processes while other tests run


@pytest.fixture(scope="module", autouse=True)
def connection(cluster, connect):
    """This process is connected once; the executors find that and leave it as it is (RA-1, RA-7)."""
    ray = connect(cluster.address)
    yield ray
    ray.shutdown()


class TestTwoRanks(ExecutorContract):
    """Starting a rank means starting a Python with Ray in it, so the tests that need no fresh ranks share two."""

    executor = "tenonry_executor_ray.executor:RayExecutor"
    config: ClassVar[dict[str, Any]] = {"tensor_parallel_size": 2, "device": "cpu"}
    shared: ClassVar[list[Any]] = []

    def start(self, *, fresh=False, **worker_options):
        if worker_options or fresh:
            return super().start(**worker_options)
        if not self.shared:
            self.shared.append(super().start())
            self._built.remove(self.shared[0])
        self.shared[0].initialize(self.spec.kv_cache())
        return self.shared[0]

    def test_shutdown_leaves_no_process(self, monkeypatch):
        monkeypatch.setattr(self, "start", partial(self.start, fresh=True))
        super().test_shutdown_leaves_no_process()

    @classmethod
    def teardown_class(cls):
        while cls.shared:
            cls.shared.pop().shutdown()


@pytest.fixture
def make(no_actor_left):
    """`make(options, plan_text, **config)`: an executor of OddWorker; `make.heard` collects its failures."""
    built, spec = [], HarnessSpec(num_blocks=30)

    def build(options=None, plan_text="", **config):
        config = EngineConfig(
            **{"model": "m", "device": "cpu", "executor": "ray", "max_num_seqs": 4, **config}
        )
        context = ExecutorContext(
            config,
            fake_model(vocab_size=spec.vocab_size),
            max_model_len=spec.max_model_len,
            worker_class=FakeWorker,
            worker_target="ray_test_roles:OddWorker",
            worker_options=FakeWorkerOptions(vocab_size=spec.vocab_size),
            options=RayExecutorOptions(**(options or {})),
            plan_text=plan_text,
        )
        built.append(RayExecutor(context))
        built[-1].on_failure(build.heard.put)
        return built[-1]

    def start(*args, **config):
        executor = build(*args, **config)
        executor.start()
        executor.initialize(spec.kv_cache())
        return executor

    def shutdown():
        while built:
            built.pop().shutdown()

    build.heard, build.start, build.shutdown = queue.SimpleQueue(), start, shutdown
    yield build
    shutdown()


def step(step_id, token):
    """One row whose prompt of three tokens holds `token`."""
    new = NewRow(
        row=step_id,
        handle=step_id + 1,
        token_ids=np.array([1, token, 2], np.int32),
        num_computed=0,
        num_output=0,
        block_ids=(np.array([step_id], np.int32),),
        sampling=SamplingParams(temperature=0.0),
    )
    return SchedulerOutput(
        step_id=step_id,
        new=[new],
        row=np.array([step_id], np.int32),
        num_tokens=np.array([3], np.int32),
        next_token=np.array([-1], np.int32),
        samples=np.ones(1, np.bool_),
        generation=np.zeros(1, np.int32),
        total_tokens=3,
    )


def test_a_killed_rank_ends_every_step_and_is_named(make):
    """Pending steps, later ones and calls fail within seconds; `on_failure` is called once."""
    executor = make.start(tensor_parallel_size=2)
    (_, _, url, _), (rank, local_rank, same_url, pid) = executor.call("where")
    assert (rank, local_rank, url) == (1, 1, same_url)
    assert url.startswith("file://")
    futures = [executor.execute_model(step(0, 5)), executor.execute_model(step(1, 3))]
    os.kill(pid, signal.SIGKILL)
    text = rf"rank 1 \(node \S+ \(\S+\), pid {pid}\) is gone"
    for future in futures:
        with pytest.raises(EngineDeadError, match=text):
            future.result(PATIENCE_S)
        assert future.done()
    with pytest.raises(EngineDeadError, match=text):
        executor.execute_model(step(2, 3))
    with pytest.raises(EngineDeadError, match=text):
        executor.check_health()
    assert "rank 1" in make.heard.get(timeout=PATIENCE_S)
    executor.shutdown()
    assert make.heard.empty()


@pytest.mark.nightly
def test_a_fault_of_a_rank_that_answers_nothing_is_heard(make):
    """Rank 1's result goes nowhere, its error does."""
    executor = make.start(tensor_parallel_size=2)
    future = executor.execute_model(step(0, 7))
    heard = make.heard.get(timeout=PATIENCE_S)
    assert heard.startswith("rank 1 (node ")
    assert heard.endswith("ArithmeticError: rank 1 cannot do sevens")
    assert future.done()


@pytest.mark.nightly
def test_a_hanging_rank_meets_the_deadline(connection, make):
    """`--step-timeout`; the group is the user's, and still exists afterwards."""
    from ray.util import get_placement_group, placement_group, remove_placement_group

    group = placement_group([{"CPU": 1}], name="ranks")
    try:
        assert group.wait(PATIENCE_S)
        with pytest.raises(ConfigError, match="'ranks' has 1 bundles, but an engine needs 2"):
            make.start({"placement_group": "ranks"}, tensor_parallel_size=2)
        executor = make.start({"placement_group": "ranks"}, step_timeout=0.5)
        assert executor.call("where")[0][:3] == [0, 0, ""]
        future = executor.execute_model(step(0, 5))
        with pytest.raises(TimeoutError, match=r"step 0 was not answered within 0\.1 s"):
            future.result(0.1)
        with pytest.raises(
            EngineDeadError,
            match=r"step 0 was not answered within 0\.5 s by rank 0 .*--step-timeout",
        ):
            future.result()
        assert make.heard.get(timeout=PATIENCE_S).startswith("step 0 was not answered")
        executor.shutdown()
        assert get_placement_group("ranks").bundle_count == 1
    finally:
        remove_placement_group(group)


@pytest.mark.nightly
def test_the_health_check_asks_no_rank_with_a_step_in_flight(make, monkeypatch):
    """It waits for nothing: a step that is young is no reason to worry, an old one names the late ranks."""
    executor = make.start()
    executor.execute_model(step(0, 5))
    monkeypatch.setattr(executor.ranks, "ask_all", None)
    monkeypatch.setattr(executor_module, "HEALTH_TIMEOUT_S", 600.0)
    executor.check_health()
    monkeypatch.setattr(executor_module, "HEALTH_TIMEOUT_S", 0.0)
    with pytest.raises(TimeoutError, match="a step was not answered within 0 s by rank 0"):
        executor.check_health()


@pytest.mark.nightly
def test_a_start_that_cannot_succeed_says_why(connection, make):
    """Room for the ranks, and the versions on their nodes; no group is left."""
    from ray.util import placement_group_table

    with pytest.raises(
        ConfigError, match="an engine of 9 ranks needs 9 CPU, but the cluster has 8"
    ):
        make.start(tensor_parallel_size=9)
    entry = PluginRecord(
        kind="worker", name="w", target="x:Y", distribution="tenonry-testkit", version="9.9"
    )
    with pytest.raises(
        LaunchError, match=r"\(rank 0\) has tenonry-testkit 0\.1\.0, this one has 9\.9"
    ):
        make.start(plan_text=PluginPlan((entry,)).encode())
    make.shutdown()
    assert all(group["state"] == "REMOVED" for group in placement_group_table().values())


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize(
    ("config", "depth", "feeds_back"),
    [
        ({}, 1, True),
        ({"pipeline_parallel_size": 3}, 3, False),
        ({"pipeline_parallel_size": 3, "async_scheduling": False}, 1, False),
    ],
)
def test_a_pipeline_is_filled(make, config, depth, feeds_back):
    """EC-10: a step per stage, none of which needs the token of one before it."""
    executor = make(**config)
    assert (executor.max_concurrent_batches, executor.feeds_back_tokens) == (depth, feeds_back)


def test_use_before_start_says_so(make):
    with pytest.raises(RuntimeError, match="not started"):
        make().execute_model(step(0, 3))
