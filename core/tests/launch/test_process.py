"""The launcher `process`: engines as children, started together or not at all (PM-6 to PM-8)."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from tenonry.config import EngineConfig
from tenonry.errors import LaunchError
from tenonry.info import ModelInfo, PluginRecord
from tenonry.interfaces.launcher import FIRST_STANDBY, EngineSpec, LauncherContext
from tenonry.launch import process, supervise
from tenonry.launch.forks import IS_SUPPORTED
from tenonry.launch.process import ENGINE_ROLE, ProcessLauncher
from tenonry.launch.supervise import STOP_SIGNAL
from tenonry.plugin.plan import PluginPlan
from tenonry_testkit.kernel.roles import is_gone
from tenonry_testkit.roles import eventually

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
    monkeypatch.setattr(process, "ENGINE_ROLE", "tenonry_testkit.kernel.launch_roles:sleep")
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


@pytest.mark.parametrize("worker", [FAKE, IMPORTS], ids=["fresh", "forked"])
def test_a_collected_launcher_takes_its_engines_along(monkeypatch, worker):
    """PM-4."""
    monkeypatch.setattr(process, "ENGINE_ROLE", "tenonry_testkit.kernel.launch_roles:sleep")
    launcher = ProcessLauncher(CONTEXT)
    launcher.start([spec(0, worker=worker)])
    eventually(launcher.pids)
    processes = psutil.Process().children()
    assert len(processes) == (2 if worker == IMPORTS and IS_SUPPORTED else 1)
    del launcher
    gc.collect()
    eventually(lambda: all(is_gone(one.pid) for one in processes))


@pytest.mark.skipif(not IS_SUPPORTED, reason="needs Linux")
class TestForks:
    """Engines whose worker says what to import are forks of a process that has done so, and keeps nothing else."""

    def start(
        self, launcher: ProcessLauncher, tmp_path: Path, *indexes: int, **plugins: str
    ) -> list[str]:
        """Whether each imported by itself, as it says."""
        files = [tmp_path / str(index) for index in indexes]
        launcher.start(
            [spec(index, str(file), **plugins) for index, file in zip(indexes, files, strict=True)]
        )
        for file in files:
            eventually(file.exists)
        return [file.read_text("utf-8") for file in files]

    @pytest.fixture(autouse=True)
    def without_gpus(self, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        monkeypatch.setenv("TENONRY_TEST", "")

    def test_all_of_one_that_has_imported_once(self, launcher, tmp_path):
        before = len(psutil.Process().children())
        assert self.start(launcher, tmp_path, 0, 1, worker=IMPORTS) == [" forked"] * 2
        assert self.start(launcher, tmp_path, 2, worker=IMPORTS) == [" forked"]
        assert len(psutil.Process().children()) == before + 4

    def test_it_begins_before_the_first_engine(self, launcher, tmp_path):
        before = len(psutil.Process().children())
        launcher.prepare(spec(0, worker=IMPORTS))
        assert len(psutil.Process().children()) == before + 1
        assert not launcher.pids()
        assert self.start(launcher, tmp_path, 3, worker=IMPORTS) == [" forked"]
        assert len(psutil.Process().children()) == before + 2

    def test_it_ends_where_no_engine_follows(self, launcher):
        before = psutil.Process().children()
        launcher.prepare(spec(0, worker=IMPORTS))
        launcher.shutdown(0.2)
        assert psutil.Process().children() == before

    def test_one_that_was_killed_is_started_again(self, launcher, tmp_path):
        """Whatever ends, the next engine starts: in a fresh interpreter if it comes to that."""
        self.start(launcher, tmp_path, 0, worker=IMPORTS)
        (server,) = (
            one for one in psutil.Process().children() if "fork-server" in one.cmdline()[0]
        )
        server.kill()
        eventually(lambda: is_gone(server.pid))
        assert self.start(launcher, tmp_path, 1, worker=IMPORTS) == [" forked"]
        assert list(launcher.pids()) == ["engine 0", "engine 1"]

    @pytest.mark.parametrize(
        "plugins",
        [{"worker": FAKE}, {"worker": IMPORTS, "executor": ELSEWHERE}],
        ids=["a worker that says nothing", "ranks in other processes"],
    )
    def test_none_where_nothing_would_be_imported(self, launcher, tmp_path, plugins):
        before = len(psutil.Process().children())
        assert self.start(launcher, tmp_path, 0, **plugins) == [""]
        assert len(psutil.Process().children()) == before + 1

    def test_it_ends_with_its_launcher_and_others_have_their_own(self, launcher, tmp_path):
        """Engines that replace some may be of plugins that were installed since."""
        before = len(psutil.Process().children())
        self.start(launcher, tmp_path, 0, worker=IMPORTS)
        other = ProcessLauncher(CONTEXT)
        assert self.start(other, tmp_path, 1, worker=IMPORTS) == [" forked"]
        assert len(psutil.Process().children()) == before + 4
        launcher.shutdown(0.2)
        assert self.start(other, tmp_path, 2, worker=IMPORTS) == [" forked"]
        other.shutdown(0.2)
        assert len(psutil.Process().children()) == before

    def test_none_where_there_are_gpus(self, launcher, tmp_path, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
        assert self.start(launcher, tmp_path, 0, worker=IMPORTS) == [""]

    def test_no_second_try_where_imports_cannot_be_forked(self, launcher, tmp_path, monkeypatch):
        monkeypatch.setenv("TENONRY_TEST", "thread")
        for index in (0, 1):
            assert self.start(launcher, tmp_path, index, worker=IMPORTS) == ["thread"]
        assert len(launcher.pids()) == 2
