"""A real Ray for all tests of this folder: a head on this machine, few CPUs, little memory, no dashboard."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tenonry_testkit.processes import children_killed
from tenonry_testkit.residue import RUN_VARIABLE

SECOND_ADDRESS = "127.0.0.2"  # of the second node, on this machine
ROLES = Path(__file__).with_name("roles")
HEAD = {
    "num_cpus": 8,
    "num_gpus": 2,
    "object_store_memory": 80_000_000,
    "include_dashboard": False,
    "no_monitor": True,
    "include_log_monitor": False,
}
SETTINGS = {
    "RAY_AUTH_MODE": "disabled",  # no token file in the home folder
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_worker_niceness": "1",  # by default 15: with other tests running, actors would get hardly any CPU
}
PATIENCE_S = 60.0  # for hangs: Ray starts processes while other tests run


@contextmanager
def ray_settings():
    """Environment of Ray's processes and of ours, in which the modules of the test roles can be imported."""
    paths = [str(ROLES), *filter(None, [os.environ.get("PYTHONPATH")])]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**SETTINGS, "PYTHONPATH": os.pathsep.join(paths)}.items():
            patch.setenv(name, value)
        patch.delenv("RAY_ADDRESS", raising=False)
        yield


@contextmanager
def sigterm_handler_kept():
    """Restore the handler of SIGTERM: `ray.init` and every node install their own, which outlives them."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.fixture(autouse=True)
def _settings():
    with ray_settings():
        yield


@pytest.fixture(scope="session")
def connect():
    """`connect(address, **settings)`: `ray.init` for a test's own purposes."""

    def run(address, **settings):
        import ray

        with ray_settings(), sigterm_handler_kept():
            ray.init(address=address, log_to_driver=False, **settings)
        return ray

    return run


@contextmanager
def one_cluster():
    """A cluster with one node; all that was started for it is killed in the end, with the agents that Ray leaves."""
    from ray.cluster_utils import Cluster

    with children_killed():
        with sigterm_handler_kept():
            cluster = Cluster(initialize_head=True, head_node_args=HEAD)
        yield cluster


@pytest.fixture(scope="module")
def cluster():
    """One node with eight CPUs and two GPUs that exist only in Ray's books; `address` is where it listens.

    It lives as long as the tests of a file, so that nothing of it is left for tests of other folders.
    """
    with ExitStack() as stack:
        with ray_settings():
            found = stack.enter_context(one_cluster())
        yield found
        _disconnect()


def _disconnect():
    """Tests of other folders start without a connection, too."""
    import ray

    ray.shutdown()


@pytest.fixture
def second_cluster():
    """One that the test may break."""
    with one_cluster() as found:
        yield found


@pytest.fixture
def second_node(cluster):
    """A second node, as large as the first; it may be removed by the test."""
    with sigterm_handler_kept():
        node = cluster.add_node(
            num_cpus=8, object_store_memory=80_000_000, node_ip_address=SECOND_ADDRESS
        )
    yield node
    if node in cluster.worker_nodes:
        cluster.remove_node(node)


@pytest.fixture
def wait_for():
    """`wait_for(condition, what)`: until it is true; fails after PATIENCE_S."""

    def wait(condition, what="it"):
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not happen"
            time.sleep(0.02)

    return wait


def is_running(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(name="is_running")
def _is_running():
    """`is_running(pid)`: whether a process exists and is no zombie."""
    return is_running


@pytest.fixture
def no_actor_left(wait_for):
    """After the test there is no process of an actor of ours, nor an engine."""
    yield
    wait_for(lambda: not _actors(), "the end of all actors")


def _actors():
    """Of this test run: the machine may have others."""
    mark, found = os.environ.get(RUN_VARIABLE), []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if line.startswith(
            ("ray::EngineActor", "ray::RankActor", "ray::engine", "ray::rank", "tenonry: engine")
        ):
            with suppress(psutil.Error):
                if process.environ().get(RUN_VARIABLE) == mark:
                    found.append(line)
    return found
