"""Fork servers of forks: children of an engine are forks of the same imports (PM-4, WK-11)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tenonry.launch.supervise import Supervisor
from tenonry_launcher_fork.forks import IS_SUPPORTED, start_fork_server
from tenonry_testkit.kernel.roles import is_gone
from tenonry_testkit.roles import eventually, read_facts

pytestmark = [pytest.mark.skipif(not IS_SUPPORTED, reason="needs Linux"), pytest.mark.integration]
ROLES = "tenonry_testkit.kernel.fork_roles"
ENGINE = f'''
import os, time
from pathlib import Path
from tenonry.launch.supervise import Supervisor
from tenonry_launcher_fork.fork_server import own_server
from tenonry_testkit.roles import read_facts, write_facts

def run(payload):
    """Start a rank, and another one once the file "again" is there."""
    server, folder, supervisor = own_server(), Path(payload["folder"]), Supervisor()
    for name in ("rank", "again"):
        while name == "again" and not (folder / "go").exists():
            time.sleep(0.01)
        rank = supervisor.start(
            name, "{ROLES}:report_fork", {{"file": str(folder / name)}}, starter=server, pass_fds=(1,)
        )
        read_facts(folder / name)
        facts = {{"pid": os.getpid(), "server": server.process.pid, "rank": rank.pid}}
        write_facts({{"file": str(folder / f"engine {{name}}")}}, facts)
    time.sleep(600)
'''


class Engine:
    """A fork that started a child from its own fork server."""

    def __init__(self, supervisor: Supervisor, folder: Path) -> None:
        self.folder = folder
        self.server = start_fork_server(f"{ROLES}:imports", "", has_own_servers=True)
        self.child = supervisor.start(
            "engine 0", "engine_of_test:run", {"folder": str(folder)}, starter=self.server
        )
        self.pids: dict[str, int] = read_facts(folder / "engine rank")

    def facts(self, name: str) -> dict[str, object]:
        """What a rank wrote about itself."""
        return read_facts(self.folder / name)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    (tmp_path / "engine_of_test.py").write_text(ENGINE, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    supervisor = Supervisor()
    made = Engine(supervisor, tmp_path)
    yield made
    supervisor.stop(0.1)
    made.server.close()


def test_a_rank_is_a_fork_and_a_child_of_its_engine(engine):
    assert engine.facts("rank")["is_fork"]
    assert psutil.Process(engine.pids["rank"]).ppid() == engine.pids["pid"]
    assert psutil.Process(engine.pids["server"]).ppid() == engine.pids["pid"]
    assert psutil.Process(engine.pids["pid"]).ppid() == os.getpid()


def test_without_the_server_a_rank_gets_a_fresh_interpreter(engine):
    os.kill(engine.pids["server"], signal.SIGKILL)
    eventually(lambda: is_gone(engine.pids["server"]))
    (engine.folder / "go").touch()
    assert not engine.facts("again")["is_fork"]


@pytest.mark.parametrize("first", ["rank", "server", "both servers"])
def test_nothing_outlives_an_engine_that_is_killed(engine, first):
    """Whatever ended before it."""
    victims = {
        "rank": [engine.pids["rank"]],
        "server": [engine.pids["server"]],
        "both servers": [engine.server.process.pid, engine.pids["server"]],
    }
    for pid in victims[first]:
        os.kill(pid, signal.SIGKILL)
    os.kill(engine.pids["pid"], signal.SIGKILL)
    eventually(lambda: all(map(is_gone, engine.pids.values())))


def test_a_stopped_server_ends_with_its_engine_too(engine):
    os.kill(engine.pids["server"], signal.SIGSTOP)
    os.kill(engine.pids["pid"], signal.SIGKILL)
    eventually(lambda: is_gone(engine.pids["server"]))
