"""The launcher `fork`: engines as forks of one process, or fresh if a fork would differ (PM-4, PM-6 to PM-8)."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from tenonry.config import EngineConfig
from tenonry.info import ModelInfo, PluginRecord
from tenonry.interfaces.launcher import EngineSpec, LauncherContext
from tenonry.plugin.manager import PluginManager
from tenonry.plugin.plan import PluginPlan
from tenonry_launcher_fork.forks import IS_SUPPORTED
from tenonry_launcher_fork.launcher import ForkLauncher
from tenonry_testkit.kernel.launch_roles import DistantExecutor
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
def launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkLauncher]:
    """Its children sleep instead of being engines."""
    monkeypatch.setattr(ForkLauncher, "role", "tenonry_testkit.kernel.launch_roles:sleep")
    made = ForkLauncher(CONTEXT)
    yield made
    made.shutdown(0.2)


def test_the_default_launcher_forks_where_this_is_installed():
    config = EngineConfig(model="m")
    record = PluginManager().resolve("launcher", config.launcher, config)
    assert (record.name, record.distribution) == ("fork", "tenonry-launcher-fork")


def test_a_collected_launcher_takes_its_engines_along(monkeypatch):
    """PM-4."""
    monkeypatch.setattr(ForkLauncher, "role", "tenonry_testkit.kernel.launch_roles:sleep")
    launcher = ForkLauncher(CONTEXT)
    launcher.start([spec(0, worker=IMPORTS)])
    eventually(launcher.pids)
    processes = psutil.Process().children()
    assert len(processes) == (2 if IS_SUPPORTED else 1)
    del launcher
    gc.collect()
    eventually(lambda: all(is_gone(one.pid) for one in processes))


@pytest.mark.skipif(not IS_SUPPORTED, reason="needs Linux")
class TestForks:
    """Engines whose worker names imports are forks of a process with only these imports."""

    def start(
        self, launcher: ForkLauncher, tmp_path: Path, *indexes: int, **plugins: str
    ) -> list[str]:
        """Start the engines; returns the import facts that each writes to its file."""
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

    def test_engines_whose_ranks_are_their_children_are_forks_too(
        self, launcher, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(DistantExecutor, "starts_ranks", True)
        plugins = {"worker": IMPORTS, "executor": ELSEWHERE}
        assert self.start(launcher, tmp_path, 0, 1, **plugins) == [" forked"] * 2
        (engine, _) = launcher.pids().values()
        (server,) = psutil.Process(engine).children()
        assert "fork-server" in server.cmdline()[0]
        launcher.stop(["engine 0"])
        eventually(lambda: is_gone(server.pid))

    def test_it_ends_with_its_launcher_and_others_have_their_own(self, launcher, tmp_path):
        """Engines that replace some may be of plugins that were installed since."""
        before = len(psutil.Process().children())
        self.start(launcher, tmp_path, 0, worker=IMPORTS)
        other = ForkLauncher(CONTEXT)
        assert self.start(other, tmp_path, 1, worker=IMPORTS) == [" forked"]
        assert len(psutil.Process().children()) == before + 4
        launcher.shutdown(0.2)
        assert self.start(other, tmp_path, 2, worker=IMPORTS) == [" forked"]
        other.shutdown(0.2)
        assert len(psutil.Process().children()) == before

    def test_engines_with_gpus_are_forks_too(self, launcher, tmp_path, monkeypatch):
        """The process of which they are forked has opened none."""
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
        assert self.start(launcher, tmp_path, 0, 1, worker=IMPORTS) == [" forked"] * 2

    def test_no_second_try_where_imports_cannot_be_forked(self, launcher, tmp_path, monkeypatch):
        monkeypatch.setenv("TENONRY_TEST", "thread")
        for index in (0, 1):
            assert self.start(launcher, tmp_path, index, worker=IMPORTS) == ["thread"]
        assert len(launcher.pids()) == 2
