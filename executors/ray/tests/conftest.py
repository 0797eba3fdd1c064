"""A real Ray for all tests of this folder: a head on this machine, few CPUs, little memory, no dashboard."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest

ROLES = Path(__file__).with_name("roles")
NODE = {"num_cpus": 4, "object_store_memory": 80_000_000}
QUIET = {
    "RAY_AUTH_MODE": "disabled",  # no token file in the home folder
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
}


@pytest.fixture(scope="session")
def ray_settings():
    """The environment of Ray's processes; what the test roles are made of can be imported there."""
    paths = [str(ROLES), *filter(None, [os.environ.get("PYTHONPATH")])]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**QUIET, "PYTHONPATH": os.pathsep.join(paths)}.items():
            patch.setenv(name, value)
        patch.delenv("RAY_ADDRESS", raising=False)
        yield


def start_cluster(**head):
    from ray.cluster_utils import Cluster

    return Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False, **head})


@pytest.fixture(scope="session")
def cluster(ray_settings):
    """One head with four CPUs; `cluster.address` is where it listens."""
    found = start_cluster()
    yield found
    found.shutdown()


@pytest.fixture
def wait_for():
    """`wait_for(condition)`: until it is true; fails after 20 s."""

    def wait(condition, what="it"):
        deadline = time.monotonic() + 20.0
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not happen"
            time.sleep(0.02)

    return wait


@pytest.fixture
def is_running():
    """`is_running(pid)`: whether a process exists and is no zombie."""

    def check(pid):
        try:
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    return check
