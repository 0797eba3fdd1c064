"""Loss of parts of the cluster: a node, the head, the front end (real nodes, real signals)."""

from __future__ import annotations

import logging
import os
import queue
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tenonry.config import EngineConfig
from tenonry.errors import LaunchError
from tenonry.info import PluginRecord
from tenonry.interfaces.executor import ExecutorContext
from tenonry.interfaces.launcher import EngineSpec, LauncherContext
from tenonry.kv_cache import KVCacheConfig
from tenonry.plugin.plan import PluginPlan
from tenonry.step import SchedulerOutput
from tenonry_executor_ray.executor import RayExecutor
from tenonry_executor_ray.launcher import RayLauncher
from tenonry_executor_ray.options import RayExecutorOptions, RayLauncherOptions
from tenonry_testkit.fakes.model import fake_model
from tenonry_testkit.fakes.worker import FakeWorker, FakeWorkerOptions

pytestmark = [pytest.mark.timeout(200), pytest.mark.usefixtures("no_actor_left")]
PATIENCE_S = 60.0  # for hangs: Ray starts processes while other tests run
EXECUTOR = PluginRecord(
    kind="executor", name="instant", target="tenonry_testkit.fakes:InstantExecutor"
)
PLAN = PluginPlan((EXECUTOR,))


def specs(count):
    return [
        EngineSpec(
            engine_index=index,
            local_rank=index,
            handshake_address="tcp://127.0.0.1:1",
            config_text="{}",
            plan_text=PLAN.encode(),
            model_text="{}",
        )
        for index in range(count)
    ]


def make_launcher(cluster, engines, **options):
    config = EngineConfig(model="m", device="cpu", data_parallel_size=engines)
    given = RayLauncherOptions(address=cluster.address, **options)
    launcher = RayLauncher(LauncherContext(config, options=given))
    heard = queue.SimpleQueue()
    launcher.on_exit(lambda *what: heard.put(what))
    return launcher, heard


@pytest.fixture(autouse=True)
def _role(monkeypatch):
    from tenonry_executor_ray.fleet import Fleet

    monkeypatch.setattr(Fleet, "role", "ray_test_roles:run")


@pytest.mark.nightly
@pytest.mark.timeout(120)
def test_a_lost_node_is_reported_with_its_engine(cluster, second_node, caplog):
    """RA-5, Q3: our node comes first, then the others; a lost node's engine is named, the other one continues."""
    caplog.set_level(logging.INFO, "tenonry.ray")
    launcher, heard = make_launcher(cluster, 2, num_cpus=6)
    try:
        launcher.start(specs(2))
        pids = launcher.pids()
        nodes = {
            record.args[0]: record.args[1]
            for record in caplog.records
            if "runs on node" in record.msg
        }
        niceness = os.getpriority(os.PRIO_PROCESS, 0) + 1  # as the nodes were started here
        assert caplog.text.count(f", at niceness {niceness} (") == 2
        second = second_node.node_ip_address
        assert [second in nodes[name] for name in ("engine 0", "engine 1")] == [False, True]
        cluster.remove_node(second_node, allow_graceful=False)
        assert heard.get(timeout=PATIENCE_S)[:2] == ("engine 1", pids["engine 1"])
        assert f"engine 1 (pid {pids['engine 1']}) on node {nodes['engine 1']} ended" in caplog.text
        assert launcher.pids() == {"engine 0": pids["engine 0"]}
    finally:
        launcher.shutdown()


@pytest.mark.nightly
@pytest.mark.timeout(120)
def test_ranks_on_two_nodes_meet_at_a_port_of_the_first(cluster, second_node, connect):
    """A group spreads if one node has no room; each rank is the first on its node."""
    ray = connect(cluster.address)
    config = EngineConfig(model="m", device="cpu", executor="ray", tensor_parallel_size=2)
    context = ExecutorContext(
        config,
        fake_model(),
        max_model_len=64,
        worker_class=FakeWorker,
        worker_target="ray_test_roles:OddWorker",
        worker_options=FakeWorkerOptions(),
        options=RayExecutorOptions(num_cpus=6),
    )
    executor = RayExecutor(context)
    try:
        executor.start()
        first, second = executor.call("where")
        urls = {f"tcp://{node['NodeManagerAddress']}:12345" for node in ray.nodes()}
        assert first[:3] == [0, 0, ""]
        assert second[:2] == [1, 0]
        assert second[2] in urls
        executor.initialize(
            KVCacheConfig(num_blocks=4, block_size=4, groups=tuple(executor.kv_cache_groups()[0]))
        )
        assert executor.execute_model(SchedulerOutput(step_id=3)).result(PATIENCE_S).step_id == 3
    finally:
        executor.shutdown()
        ray.shutdown()


@pytest.mark.nightly
@pytest.mark.timeout(120)
def test_everything_goes_with_the_head(second_cluster, is_running, wait_for, caplog):
    """Every engine is reported and ends, `shutdown` comes back, and this process is not Ray's to end any more."""
    import ray

    launcher, heard = make_launcher(second_cluster, 1)
    try:
        launcher.start(specs(1))
        (pid,) = launcher.pids().values()
        second_cluster.head_node.kill_gcs_server(check_alive=False)
        assert heard.get(timeout=PATIENCE_S)[:2] == ("engine 0", pid)
        assert "does not answer" in caplog.text
        with pytest.raises(
            LaunchError, match="no engine can be started: the head of the Ray cluster at"
        ):
            launcher.start(specs(1))
        launcher.shutdown()
        wait_for(lambda: not is_running(pid), "the end of the engine")
        assert not ray.is_initialized(), "Ray would end this process a minute after its head"
    finally:
        launcher.shutdown()


FRONT_END = """
import sys, time
from tenonry.config import EngineConfig
from tenonry.interfaces.launcher import LauncherContext
from tenonry_executor_ray.fleet import Fleet
from tenonry_executor_ray.launcher import RayLauncher
from tenonry_executor_ray.options import RayLauncherOptions
sys.path.append(sys.argv[2])
from test_nodes import specs
Fleet.role = "ray_test_roles:run"
config = EngineConfig(model="m", device="cpu")
launcher = RayLauncher(LauncherContext(config, options=RayLauncherOptions(address=sys.argv[1])))
launcher.start(specs(1))
print("engine", *launcher.pids().values(), flush=True)
time.sleep(1000)
"""


@pytest.mark.nightly
@pytest.mark.timeout(120)
def test_nothing_survives_the_front_end(cluster, is_running, wait_for):
    """SIGKILL of the process that launched: Ray ends its actors, and the engines end with them."""
    folder = os.path.dirname(__file__)  # noqa: PTH120
    command = [sys.executable, "-c", FRONT_END, cluster.address, folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as front_end:
        lines = iter(front_end.stdout.readline, "")
        pid = next(int(line.split()[1]) for line in lines if line.startswith("engine "))
        actor = psutil.Process(pid).ppid()
        assert is_running(pid)
        front_end.send_signal(signal.SIGKILL)
        killed = time.monotonic()
    wait_for(lambda: not is_running(pid) and not is_running(actor), "the end of engine and actor")
    assert time.monotonic() - killed < PATIENCE_S
