"""`tenonry ps`: running instances as trees of role, rank, epoch, pid, uptime and state; real processes, by title."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from setproctitle import getproctitle, setproctitle

from tenonry.cli import make_parser
from tenonry.launch.supervise import Child, Supervisor
from tenonry_commands import ps
from tenonry_testkit.roles import eventually, read_facts

pytestmark = pytest.mark.integration

SERVER = """
import sys, time
from setproctitle import setproctitle
from tenonry.launch.supervise import Supervisor
setproctitle(sys.argv[1])
supervisor = Supervisor()
for number in range(2):
    supervisor.start(f"engine {number}", "tenonry_testkit.roles:sleep", {"file": f"{sys.argv[2]}{number}"})
supervisor.start("coordinator", "tenonry_testkit.roles:sleep", {"file": f"{sys.argv[2]}2"})
time.sleep(600)
"""


ENGINE = """
from tenonry_testkit import roles
from tenonry.launch.supervise import Supervisor
def run(payload):
    supervisor = Supervisor()
    for rank in range(2):
        supervisor.start(f"worker 0.{rank}", "tenonry_testkit.roles:sleep", {"file": payload["file"] + str(rank)})
    return roles.sleep(payload)
"""


@pytest.fixture(autouse=True)
def _untitled() -> Iterator[None]:
    """A test before may have set the title of this process, as `tenonry serve` does."""
    before = getproctitle()
    setproctitle("pytest")
    yield
    setproctitle(before)


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    made = Supervisor()
    yield made
    made.stop(1.0)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Any]:
    """Starts a titled top process with two engines and a coordinator; returns it when all run."""
    started = []

    def start(title: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER, title, str(tmp_path / "child")], env=environment
        )
        started.append(process)
        for number in range(3):
            read_facts(tmp_path / f"child{number}")
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def start(supervisor: Supervisor, name: str, folder: Path) -> Child:
    child = supervisor.start(name, "tenonry_testkit.roles:sleep", {"file": str(folder / name)})
    read_facts(folder / name)
    return child


def run(capsys: Any, *words: str) -> str:
    parser, command = make_parser("ps")
    assert command.run(parser.parse_args(words)) == 0
    out: str = capsys.readouterr().out
    return out


def instance(pid: int) -> list[ps.Row]:
    """The rows of one instance; others may run on this machine, too."""
    return [row for row in ps.process_rows() if row.instance == pid]


def test_children_of_an_untitled_program_are_its_tree(supervisor, tmp_path):
    """A library user's own process keeps its title and is still the top."""
    children = [
        start(supervisor, name, tmp_path) for name in ("engine 0", "worker 0.1", "coordinator")
    ]
    rows = instance(os.getpid())
    assert [(row.depth, row.role, row.rank, row.pid, row.state) for row in rows] == [
        (0, "program", "", os.getpid(), "ok"),
        *sorted(
            [
                (1, "engine", "0", children[0].pid, "ok"),
                (1, "worker", "0.1", children[1].pid, "ok"),
                (1, "coordinator", "", children[2].pid, "ok"),
            ],
            key=lambda row: row[3],
        ),
    ]
    for row in rows:
        started = psutil.Process(row.pid).create_time()
        assert 0 <= row.uptime_s <= time.time() - started + 0.1


@pytest.mark.parametrize(("role", "rank"), [("api-server", "0"), ("supervisor", "")])
def test_a_titled_top_is_the_top_and_its_parent_is_not_shown(serve, role, rank):
    top = serve(f"tenonry: {role} {rank}".rstrip())
    rows = instance(top.pid)
    assert (rows[0].depth, rows[0].role, rows[0].rank, rows[0].pid) == (0, role, rank, top.pid)
    assert sorted((row.depth, row.role, row.rank) for row in rows[1:]) == [
        (1, "coordinator", ""), (1, "engine", "0"), (1, "engine", "1"),
    ]  # fmt: skip


def test_a_tree_of_three_levels(supervisor, tmp_path, monkeypatch):
    """Program, engine, workers: each below the one that started it, whatever order the pids have."""
    (tmp_path / "ps_engine.py").write_text(ENGINE, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    engine = supervisor.start("engine 0", "ps_engine:run", {"file": str(tmp_path / "said")})
    other = start(supervisor, "engine 1", tmp_path)
    workers = [read_facts(tmp_path / f"said{rank}")["pid"] for rank in range(2)]
    rows = instance(os.getpid())
    tree = [(row.depth, row.role, row.rank, row.pid) for row in rows]
    below = sorted(
        [(2, "worker", f"0.{rank}", pid) for rank, pid in enumerate(workers)],
        key=lambda row: row[3],
    )
    engines = [[(1, "engine", "0", engine.pid), *below], [(1, "engine", "1", other.pid)]]
    engines.sort(key=lambda part: part[0][3])
    assert tree == [(0, "program", "", os.getpid()), *engines[0], *engines[1]]


def test_a_stopped_process_says_so(supervisor, tmp_path):
    stopped, running = (start(supervisor, f"engine {number}", tmp_path) for number in range(2))
    os.kill(stopped.pid, signal.SIGSTOP)
    eventually(lambda: psutil.Process(stopped.pid).status() == psutil.STATUS_STOPPED)
    states = {row.pid: row.state for row in instance(os.getpid())}
    assert (states[stopped.pid], states[running.pid]) == ("stopped", "ok")
    os.kill(stopped.pid, signal.SIGCONT)


@pytest.mark.skipif(sys.platform != "linux", reason="a zombie's name")
def test_a_dead_process_that_nobody_waited_for_says_so(serve):
    """Its parent hangs; the title is gone, and its first letters are left."""
    top = serve("tenonry: api-server 0")
    os.kill(top.pid, signal.SIGSTOP)
    eventually(lambda: psutil.Process(top.pid).status() == psutil.STATUS_STOPPED)
    engine = next(row.pid for row in instance(top.pid) if row.role == "engine")
    os.kill(engine, signal.SIGKILL)
    eventually(lambda: psutil.Process(engine).status() == psutil.STATUS_ZOMBIE)
    states = {row.pid: (row.role, row.state) for row in instance(top.pid)}
    assert states[top.pid] == ("api-server", "stopped")
    assert states[engine] == ("engine", "dead")
    assert list(states.values()).count(("engine", "ok")) == 1
    os.kill(top.pid, signal.SIGCONT)
    eventually(lambda: engine not in {row.pid for row in instance(top.pid)})


def test_the_table_indents_by_two_spaces(serve, capsys):
    top = serve("tenonry: api-server 0")
    lines = run(capsys).splitlines()
    assert lines[0].split() == ["ROLE", "RANK", "EPOCH", "PID", "UPTIME", "STATE"]
    first = next(number for number, line in enumerate(lines) if f" {top.pid} " in line)
    below = lines[first + 1 : first + 4]
    assert lines[first].startswith("api-server  ")
    assert sorted(line.split()[0] for line in below) == ["coordinator", "engine", "engine"]
    assert all(line.startswith("  ") and line[2] != " " for line in below)
    coordinator = next(line for line in below if "coordinator" in line)
    assert coordinator.split()[1:3] == ["-", "-"]
    assert coordinator.split()[4].startswith("0:00:")


def test_json_is_a_list_of_records(supervisor, tmp_path, capsys):
    child = start(supervisor, "engine 0", tmp_path)
    (record,) = [
        record for record in json.loads(run(capsys, "--json")) if record["pid"] == child.pid
    ]
    assert record.pop("uptime_s") >= 0
    assert record == {
        "instance": os.getpid(), "depth": 1, "role": "engine", "rank": "0", "epoch": 1, "pid": child.pid, "state": "ok",
        "fallback": "",
    }  # fmt: skip


def test_an_engine_that_was_started_again_says_which_start_it_is(supervisor, tmp_path):
    child = start(supervisor, "engine 1 epoch 3", tmp_path)
    (row,) = [row for row in instance(os.getpid()) if row.pid == child.pid]
    assert (row.role, row.rank, row.epoch, row.fallback) == ("engine", "1", 3, "")


def test_an_engine_that_stands_by_says_so(supervisor, tmp_path, capsys):
    child = start(supervisor, "standby 2", tmp_path)
    line = next(line for line in run(capsys).splitlines() if f" {child.pid} " in line)
    assert line.split()[:4] == ["standby", "2", "-", str(child.pid)]


def test_an_engine_with_other_plugins_says_so(supervisor, tmp_path, capsys):
    others = "scheduler static, KV connector off"
    child = start(supervisor, f"engine 0 epoch 3 fallback {others}", tmp_path)
    line = next(line for line in run(capsys).splitlines() if f" {child.pid} " in line)
    assert line.split()[1:3] == ["0", "3"]
    assert line.endswith(f"ok, {others}")


def test_no_instance(monkeypatch, capsys):
    monkeypatch.setattr(ps.psutil, "process_iter", lambda fields: iter(()))
    assert run(capsys) == "no instance runs\n"
    assert run(capsys, "--json") == "[]\n"


def test_processes_of_others_and_of_other_things_are_left_out(tmp_path, monkeypatch):
    """Another user's engine, and a program that only mentions the name."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", "import time; time.sleep(600)", "tenonry: engine 0"]
    with subprocess.Popen(words, env=environment) as other:
        assert other.pid not in {row.pid for row in ps.process_rows()}
        other.kill()
    uid = os.getuid()
    monkeypatch.setattr(ps.os, "getuid", lambda: uid + 1)
    assert os.getpid() not in {row.pid for row in ps.process_rows()}


def test_the_verb_is_in_the_help():
    from tenonry.cli import help_text

    assert (
        "  ps           List the processes of running instances. (tenonry-commands " in help_text()
    )
