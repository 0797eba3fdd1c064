"""A Ray that the front end started for itself ends with the front end, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tenonry_executor_ray.cleanup import processes_of, start_cleanup

pytestmark = pytest.mark.timeout(120)
FRONT_END = """
import sys
from tenonry.config import EngineConfig
from tenonry.interfaces.launcher import LauncherContext
from tenonry_executor_ray.launcher import RayLauncher

launcher = RayLauncher(LauncherContext(EngineConfig(model="m"), options=RayLauncher.Options()))
launcher.host()
import os, ray
from ray._private import worker
print(worker.global_worker.node.get_session_dir_path(), flush=True)
for line in sys.stdin:
    if line == "niceness\\n":
        print(ray.get(ray.remote(lambda: os.getpriority(os.PRIO_PROCESS, 0)).remote()), flush=True)
    if line == "close\\n":
        launcher.shutdown()
        print("closed", flush=True)
"""


@pytest.fixture
def front_end(ray_environment):
    process = subprocess.Popen(
        [sys.executable, "-c", FRONT_END],
        env=ray_environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        session = Path(process.stdout.readline().strip())
        assert session.is_dir()
        assert session.is_absolute()
        yield process, session
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def ray_environment():
    return {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | {
        "RAY_USAGE_STATS_ENABLED": "0"
    }


def started_by(process):
    return psutil.Process(process.pid).children(recursive=True)


def test_nothing_survives_a_killed_front_end(front_end, wait_for):
    process, session = front_end
    wait_for(lambda: len(processes_of(session)) > 4, "the start of Ray's agents")
    everything = started_by(process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for(
        lambda: not any(child.is_running() for child in everything),
        "the end of all that it had started",
    )
    assert processes_of(session) == []
    assert not (session / "sockets").exists()


def ask(process, word):
    process.stdin.write(f"{word}\n")
    process.stdin.flush()
    return process.stdout.readline()


@pytest.mark.nightly
def test_what_runs_in_it_does_not_give_way_to_others_and_is_gone_after_an_orderly_end(front_end):
    process, session = front_end
    assert ask(process, "niceness") == f"{os.getpriority(os.PRIO_PROCESS, 0)}\n"
    everything = started_by(process)
    assert ask(process, "close") == "closed\n"
    assert psutil.wait_procs(everything, 20)[1] == []
    assert processes_of(session) == []


@pytest.mark.parametrize("words", [[], [""], ["."], ["/"]])
def test_a_folder_that_is_no_sessions_ends_nothing(words):
    command = [sys.executable, "-m", "tenonry_executor_ray.cleanup", *words]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 1
    assert "give the session folder of a Ray cluster" in done.stderr


def test_who_only_logs_there_lives_on(tmp_path):
    """Such as a program that is connected to the cluster."""
    session = tmp_path / "session_of_a_test"
    session.mkdir()
    program = "import sys, time; f = open(sys.stdin.readline().strip(), 'a'); print(1, flush=True); time.sleep(60)"
    rays, other = (
        subprocess.Popen(
            [title, "-c", program],
            executable=sys.executable,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for title in ("ray::DashboardAgent", "python")
    )
    try:
        for process in (rays, other):
            process.stdin.write(f"{session / 'log'}\n".encode())
            process.stdin.flush()
            assert process.stdout.readline() == b"1\n"
        start_cleanup(str(session)).communicate(timeout=20)
        assert rays.wait(10) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        for process in (rays, other):
            process.kill()
            process.communicate()
