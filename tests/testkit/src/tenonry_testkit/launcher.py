"""The conformance suite of launchers: each line of their contract is a test. Test process, and children.

from tenonry_testkit.launcher import LauncherContract

class TestMine(LauncherContract):
    launcher = "my_package:MyLauncher"

Engines of this suite wait for a handshake that never comes, so nothing is loaded.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from tenonry.config import EngineConfig
from tenonry.errors import Unsupported
from tenonry.info import ModelInfo, PluginRecord
from tenonry.interfaces.launcher import (
    FIRST_STANDBY,
    EngineSpec,
    Launcher,
    LauncherContext,
    engine_name,
)
from tenonry.plugin.plan import PluginPlan
from tenonry_testkit.kernel.exits import Exits
from tenonry_testkit.kernel.roles import is_gone
from tenonry_testkit.roles import eventually
from tenonry_testkit.targets import resolve_target

SHORT_S = 0.2  # for engines stopped during their start


class LauncherContract:
    """Subclass in a test module and name the `launcher`; `options` are its own, `config` fields of EngineConfig.

    Its engines must be processes of this node here. `exit_timeout_s`: seconds until an exit must have been reported.
    """

    launcher: ClassVar[str | type[Launcher] | None] = None
    options: ClassVar[dict[str, Any]] = {}
    config: ClassVar[dict[str, Any]] = {}
    exit_timeout_s: ClassVar[float] = 30.0

    # ------------------------------------------------------------------ tools, for tests of your own
    @contextlib.contextmanager
    def launched(self) -> Iterator[tuple[Launcher, Exits]]:
        """Yield a launcher and its reports of exits; at the end it is shut down and its engines are gone."""
        cls, options, _ = resolve_target("launcher", self.launcher, self.options)
        made: Launcher = cls(LauncherContext(self._config(), options=options))
        exits = Exits()
        made.on_exit(exits)
        seen: set[int] = set()
        try:
            yield made, exits
        finally:
            seen.update(made.pids().values())
            with contextlib.suppress(Exception):
                made.shutdown(SHORT_S)
            for pid in seen:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def spec(self, index: int) -> EngineSpec:
        """Specification of an engine that waits for a front end."""
        config = self._config()
        records = [
            PluginRecord("executor", "e", "tenonry_testkit.fakes.executor:InstantExecutor"),
            PluginRecord("worker", "w", "tenonry_testkit.fakes.worker:FakeWorker"),
        ]
        model = ModelInfo(name="fake", path="", architecture="", max_model_len=8, vocab_size=8)
        folder = Path(tempfile.gettempdir()) / "no-front-end"
        return EngineSpec(
            engine_index=index,
            local_rank=index % FIRST_STANDBY,
            handshake_address=f"ipc://{folder}",
            config_text=config.model_dump_json(exclude_unset=True),
            plan_text=PluginPlan(tuple(records)).encode(),
            model_text=msgspec.json.encode(model).decode(),
        )

    def _config(self) -> EngineConfig:
        return EngineConfig(**{"model": "fake", "device": "cpu", **self.config})

    def _eventually(self, condition: Any) -> None:
        eventually(condition, self.exit_timeout_s)

    # ------------------------------------------------------------------ the contract
    def test_it_is_a_launcher_that_the_kernel_accepts(self) -> None:
        """It resolves, can be built, and initially runs nothing."""
        with self.launched() as (launcher, _):
            assert isinstance(launcher, Launcher)
            assert launcher.pids() == {}
            assert launcher.finished() == {}
            host = launcher.host()
            assert host is None or isinstance(host, str), f"host returns {host!r}"

    def test_engines_run_under_their_names(self) -> None:
        """Each is its own process; others join later."""
        with self.launched() as (launcher, _):
            launcher.start([self.spec(0), self.spec(3)])
            assert list(launcher.pids()) == ["engine 0", "engine 3"]
            launcher.start([self.spec(1), self.spec(FIRST_STANDBY)])
            pids = launcher.pids()
            assert set(pids) == {"engine 0", "engine 3", "engine 1", "standby 0"}
            assert len(set(pids.values())) == len(pids), "two engines share a process"
            assert not any(map(is_gone, pids.values()))

    def test_an_exit_is_reported_once(self) -> None:
        """With name, process id and signal, to all callbacks; afterwards the engine is finished and does not run."""
        with self.launched() as (launcher, exits):
            launcher.start([self.spec(0), self.spec(1)])
            others = Exits()
            launcher.on_exit(others)
            pids = launcher.pids()
            os.kill(pids["engine 1"], signal.SIGKILL)
            self._eventually(lambda: exits.seen and others.seen)
            assert exits.seen == [("engine 1", pids["engine 1"], -signal.SIGKILL)]
            assert launcher.finished() == {"engine 1": -signal.SIGKILL}
            assert launcher.pids() == {"engine 0": pids["engine 0"]}
            os.kill(pids["engine 0"], signal.SIGKILL)
            self._eventually(lambda: len(exits.seen) > 1)
            assert [name for name, _, _ in exits.seen] == ["engine 1", "engine 0"]

    def test_stopped_engines_are_gone_and_not_reported(self) -> None:
        """`stop` ends the named engines only; unknown names are ignored."""
        with self.launched() as (launcher, exits):
            launcher.start([self.spec(index) for index in range(3)])
            pids = launcher.pids()
            launcher.stop(["engine 0", "engine 9"], SHORT_S)
            assert is_gone(pids["engine 0"]), "a stopped engine still runs"
            assert set(launcher.pids()) == {"engine 1", "engine 2"}
            assert not is_gone(pids["engine 1"])
            os.kill(pids["engine 2"], signal.SIGKILL)
            self._eventually(lambda: exits.seen)
            assert [name for name, _, _ in exits.seen] == ["engine 2"], "a stop is no exit"

    def test_engines_take_names_of_others(self) -> None:
        """A standby replaces an engine, and its exit is reported under the new name; an unknown name is ignored."""
        with self.launched() as (launcher, exits):
            if not launcher.supports_replacement:
                with pytest.raises(Unsupported):
                    launcher.rename("engine 0", "former engine 0")
                return
            launcher.start([self.spec(0), self.spec(FIRST_STANDBY)])
            pids = launcher.pids()
            launcher.rename("engine 0", "former engine 0")
            launcher.rename(engine_name(FIRST_STANDBY), "engine 0")
            launcher.rename("engine 7", "engine 8")
            assert launcher.pids() == {
                "former engine 0": pids["engine 0"],
                "engine 0": pids["standby 0"],
            }
            os.kill(pids["standby 0"], signal.SIGKILL)
            self._eventually(lambda: exits.seen)
            assert exits.seen[0][0] == "engine 0"

    def test_a_name_is_free_again_after_its_engine(self) -> None:
        """An ended or stopped engine is restarted under its name."""
        with self.launched() as (launcher, exits):
            launcher.start([self.spec(0)])
            first = launcher.pids()["engine 0"]
            os.kill(first, signal.SIGKILL)
            self._eventually(lambda: exits.seen)
            launcher.start([self.spec(0)])
            second = launcher.pids()["engine 0"]
            assert second != first
            launcher.stop(["engine 0"], SHORT_S)
            launcher.start([self.spec(0)])
            assert launcher.pids()["engine 0"] not in {first, second}

    def test_it_says_whether_an_engine_stepped(self) -> None:
        """An engine that ended before its first step has not; the result is a bool for any name."""
        with self.launched() as (launcher, _):
            launcher.start([self.spec(0)])
            for name in ("engine 0", "engine 9"):
                assert isinstance(launcher.has_stepped(name), bool)

    def test_preparing_starts_no_engine(self) -> None:
        """`prepare` is followed by `start`, or by `shutdown`."""
        with self.launched() as (launcher, _):
            spec = msgspec.structs.replace(self.spec(0), handshake_address="")
            launcher.prepare(spec)
            assert launcher.pids() == {}
            launcher.start([self.spec(0)])
            assert list(launcher.pids()) == ["engine 0"]
        with self.launched() as (launcher, _):
            launcher.prepare(spec)

    def test_shutdown_leaves_no_process(self) -> None:
        """No exit is reported; repeated calls have no effect, nor has a call before any start."""
        with self.launched() as (launcher, exits):
            launcher.start([self.spec(0), self.spec(1)])
            pids = launcher.pids()
            launcher.shutdown(SHORT_S)
            self._eventually(lambda: all(map(is_gone, pids.values())))
            launcher.shutdown(SHORT_S)
            assert launcher.pids() == {}
            assert exits.seen == [], "engines that are shut down are no exits"
        with self.launched() as (launcher, _):
            launcher.shutdown(SHORT_S)
