"""The launcher `process`: engines as children, started together or not at all (PM-6 to PM-8)."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator

import msgspec
import psutil
import pytest

from tenonry.config import EngineConfig
from tenonry.errors import LaunchError
from tenonry.info import ModelInfo, PluginRecord
from tenonry.interfaces.launcher import FIRST_STANDBY, EngineSpec, LauncherContext
from tenonry.launch import process, supervise
from tenonry.launch.process import ENGINE_ROLE, ProcessLauncher
from tenonry.launch.supervise import STOP_SIGNAL
from tenonry.plugin.plan import PluginPlan
from tenonry_testkit.kernel.roles import is_gone
from tenonry_testkit.roles import eventually

pytestmark = pytest.mark.integration

CONTEXT = LauncherContext(EngineConfig(model="m"))
FAKE = "tenonry_testkit.fakes.worker:FakeWorker"
IMPORTS = "tenonry_testkit.kernel.launch_roles:ImportingWorker"
HERE = "tenonry_testkit.fakes.executor:InstantExecutor"
ELSEWHERE = "tenonry_testkit.kernel.launch_roles:DistantExecutor"


def spec(index: int, file: str = "", *, executor: str = HERE, worker: str = FAKE) -> EngineSpec:
    entries = (PluginRecord("executor", "e", executor), PluginRecord("worker", "w", worker))
    model = ModelInfo(name="m", path="", architecture="", max_model_len=8, vocab_size=8)
    return EngineSpec(
        engine_index=index,
        local_rank=index,
        handshake_address="ipc:///nowhere",
        config_text=file,
        plan_text=PluginPlan(entries).encode(),
        model_text=msgspec.json.encode(model).decode(),
    )


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessLauncher]:
    """Its children sleep instead of being engines."""
    monkeypatch.setattr(ProcessLauncher, "role", "tenonry_testkit.kernel.launch_roles:sleep")
    made = ProcessLauncher(CONTEXT)
    yield made
    made.shutdown(0.2)


def test_engines_run_what_an_engine_process_runs():
    assert ENGINE_ROLE == "tenonry.engine.proc:run_engine"


def test_a_process_gets_another_name(launcher):
    launcher.start([spec(0), spec(FIRST_STANDBY + 2)])
    pids = launcher.pids()
    launcher.rename("engine 0", "former engine 0")
    launcher.rename("standby 2", "engine 0")
    launcher.rename("standby 3", "engine 1")
    assert launcher.pids() == {"former engine 0": pids["engine 0"], "engine 0": pids["standby 2"]}
    launcher.stop(["former engine 0"], 0.2)
    assert launcher.pids() == {"engine 0": pids["standby 2"]}


def test_one_child_per_engine_with_its_name_and_devices(launcher, tmp_path, monkeypatch):
    """DP-2."""
    monkeypatch.setattr(
        process, "device_environment", lambda _, rank: {"TENONRY_TEST": f"of {rank}"}
    )
    files = {index: tmp_path / str(index) for index in (0, 3)}
    launcher.start([spec(index, str(file)) for index, file in files.items()])
    pids = launcher.pids()
    assert list(pids) == ["engine 0", "engine 3"]
    for index, file in files.items():
        eventually(
            lambda file=file, index=index: (
                file.exists() and file.read_text("utf-8") == f"of {index}"
            )
        )
        title = " ".join(psutil.Process(pids[f"engine {index}"]).cmdline())
        assert title.startswith(f"tenonry: engine {index}")


def test_if_one_cannot_be_started_the_others_are_stopped(launcher, monkeypatch):
    """PM-7."""
    start, started = supervise.start_child, []

    def second_fails(name: str, *args: object, **options: object) -> object:
        if started:
            raise LaunchError(f"{name} cannot be started: no memory")
        started.append(start(name, *args, **options))  # type: ignore[arg-type]
        return started[0]

    monkeypatch.setattr(supervise, "start_child", second_fails)
    with pytest.raises(LaunchError, match="engine 1 cannot be started: no memory"):
        launcher.start([spec(0), spec(1)])
    assert started[0].exit_code == -STOP_SIGNAL
    assert launcher.pids() == {}


def test_who_ended_and_how(launcher):
    """PM-8."""
    heard: list[tuple[str, int, int]] = []
    launcher.on_exit(lambda *news: heard.append(news))
    launcher.start([spec(0), spec(1)])
    pid = launcher.pids()["engine 1"]
    psutil.Process(pid).kill()
    eventually(lambda: heard == [("engine 1", pid, -signal.SIGKILL)])
    assert launcher.finished() == {"engine 1": -signal.SIGKILL}
    assert list(launcher.pids()) == ["engine 0"]


def test_shutdown_may_be_called_again(launcher):
    launcher.start([spec(0)])
    for _ in range(2):
        launcher.shutdown()
    assert launcher.finished() == {"engine 0": -STOP_SIGNAL}


def test_a_collected_launcher_takes_its_engines_along(monkeypatch):
    """PM-4."""
    monkeypatch.setattr(ProcessLauncher, "role", "tenonry_testkit.kernel.launch_roles:sleep")
    launcher = ProcessLauncher(CONTEXT)
    launcher.start([spec(0)])
    eventually(launcher.pids)
    processes = psutil.Process().children()
    assert len(processes) == 1
    del launcher
    gc.collect()
    eventually(lambda: all(is_gone(one.pid) for one in processes))
