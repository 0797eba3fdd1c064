"""A real Ray for all tests of this folder: a head on this machine, few CPUs, little memory, no dashboard."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

ROLES = Path(__file__).with_name("roles")
HEAD = {"num_cpus": 8, "num_gpus": 2, "object_store_memory": 80_000_000, "include_dashboard": False}
SETTINGS = {
    "RAY_AUTH_MODE": "disabled",  # no token file in the home folder
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
}
PATIENCE_S = 20.0


@pytest.fixture(scope="session")
def ray_settings():
    """The environment of Ray's processes; what the test roles are made of can be imported there."""
    paths = [str(ROLES), *filter(None, [os.environ.get("PYTHONPATH")])]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**SETTINGS, "PYTHONPATH": os.pathsep.join(paths)}.items():
            patch.setenv(name, value)
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.syspath_prepend(str(ROLES))
        yield


@pytest.fixture(scope="session")
def make_cluster(ray_settings):
    """`make_cluster(**head)`: a cluster with one node; `address` is where it listens. The caller shuts it down."""
    from ray.cluster_utils import Cluster

    return lambda **head: Cluster(initialize_head=True, head_node_args={**HEAD, **head})


@pytest.fixture(scope="session")
def cluster(make_cluster):
    """One node with eight CPUs and two GPUs that exist only in Ray's books."""
    found = make_cluster()
    yield found
    found.shutdown()


@pytest.fixture
def wait_for():
    """`wait_for(condition, what)`: until it is true; fails after 20 s."""

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
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if line.startswith(("ray::EngineActor", "ray::RankActor", "ray::engine", "ray::rank", "tenonry: engine")):
            found.append(line)
    return found
