"""Children that are forks of a process with imported modules (PM-4, faults 12 and 30)."""

from __future__ import annotations

import ctypes
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tenonry.launch import supervise
from tenonry.launch.supervise import STOP_SIGNAL, Supervisor
from tenonry_launcher_fork import forks
from tenonry_launcher_fork.forks import (
    IS_SUPPORTED,
    PR_GET_CHILD_SUBREAPER,
    ForkedProcess,
    ForkServer,
    LaterProcess,
    start_fork_server,
)
from tenonry_testkit.kernel.exits import Exits
from tenonry_testkit.kernel.roles import is_gone
from tenonry_testkit.process_starter import ProcessStarterContract
from tenonry_testkit.roles import eventually, read_facts

pytestmark = [pytest.mark.skipif(not IS_SUPPORTED, reason="needs Linux"), pytest.mark.integration]
ROLES = "tenonry_testkit.kernel.fork_roles"
REPORT_FORK = f"{ROLES}:report_fork"


@pytest.fixture
def plain() -> Iterator[Supervisor]:
    made = Supervisor()
    yield made
    made.stop(0.1)


class Forks:
    """Fork servers that are closed in the end, and how children began."""

    def __init__(self) -> None:
        self.made: list[ForkServer] = []

    def __call__(self, imports: str = "imports", argument: str = "") -> ForkServer:
        self.made.append(start_fork_server(f"{ROLES}:{imports}", argument))
        return self.made[-1]


@pytest.fixture
def fork_server() -> Iterator[Forks]:
    made = Forks()
    yield made
    for server in made.made:
        server.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "said"


class TestForkServer(ProcessStarterContract):
    """A fork server keeps the rules of every process starter."""

    @pytest.fixture
    def starter(self, fork_server) -> ForkServer:
        return fork_server()


def adopts() -> bool:
    """Return True if orphans among the descendants of this process become its children."""
    answer = ctypes.c_int()
    ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(answer))
    return bool(answer.value)


PARENT = f"""
import os, signal, sys, time
from pathlib import Path
from tenonry.launch.supervise import Supervisor
from tenonry_launcher_fork.forks import start_fork_server
from tenonry_testkit.roles import read_facts
supervisor = Supervisor()
server = start_fork_server("{ROLES}:imports", "")
supervisor.start("one", "{REPORT_FORK}", {{"file": sys.argv[1]}}, starter=server)
pid = read_facts(Path(sys.argv[1]))["pid"]
"""


def parent(file: Path, then: str) -> subprocess.Popen[bytes]:
    """A process with a forked child; it runs the following code, prints both process ids and waits."""
    last = "print(pid, server.process.pid, flush=True)\ntime.sleep(600)"
    return subprocess.Popen(
        [sys.executable, "-c", f"{PARENT}{then}\n{last}", str(file)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
    )


def facts_of(running: subprocess.Popen[bytes]) -> tuple[int, int]:
    """The process ids of the child and of the fork server."""
    assert running.stdout is not None
    child, server = map(int, running.stdout.readline().split())
    return child, server


class TestAFork:
    def test_it_has_what_was_imported_and_what_its_parent_has_now(
        self, plain, fork_server, file, tmp_path, monkeypatch, capfd
    ):
        server = fork_server()
        monkeypatch.setenv("OF_TEST", "yes")
        monkeypatch.chdir(tmp_path)
        plain.start("one", REPORT_FORK, {"file": str(file)}, starter=server)
        facts = read_facts(file)
        assert facts["is_fork"]
        assert facts["of_test"] == "yes"
        assert facts["folder"] == str(tmp_path)
        assert (
            "said" in capfd.readouterr().err
        )  # not where standard error was when the server began

    def test_it_is_a_child_of_this_process_which_adopts_no_others(self, plain, fork_server, file):
        child = plain.start("one", REPORT_FORK, {"file": str(file)}, starter=fork_server())
        pid = read_facts(file)["pid"]
        assert psutil.Process(pid).ppid() == os.getpid()
        assert child.pid == pid
        assert plain.pids() == {"one": pid}
        assert not adopts()

    def test_many_begin_at_once(self, plain, fork_server, tmp_path):
        server = fork_server()
        files = [tmp_path / str(number) for number in range(8)]
        for file in files:
            plain.start(file.name, REPORT_FORK, {"file": str(file)}, starter=server)
        facts = [read_facts(file) for file in files]
        assert all(fact["is_fork"] for fact in facts)
        assert plain.pids() == {
            file.name: fact["pid"] for file, fact in zip(files, facts, strict=True)
        }

    def test_it_ends_with_its_parent_though_it_is_stopped_and_its_server_is_gone(self, file):
        """Fault 12: the kernel's signal reaches it, which no thread of a stopped process could see."""
        then = """
server.close()
os.kill(pid, signal.SIGSTOP)
"""
        with parent(file, then) as running:
            pid, _ = facts_of(running)
            assert not is_gone(pid)
            running.kill()
        eventually(lambda: is_gone(pid), seconds=5)

    def test_it_and_the_server_end_with_a_parent_that_is_killed(self, file):
        """Fault 12."""
        with parent(file, "") as running:
            pids = facts_of(running)
            assert not any(map(is_gone, pids))
            running.kill()
        eventually(lambda: all(map(is_gone, pids)), seconds=5)

    def test_what_user_code_forks_leaves_it_and_the_server_alone(self, file):
        """Fault 30: a fork of the parent runs the parent's finalizers when it ends."""
        with parent(file, "fork = os.fork() or sys.exit()\nos.waitpid(fork, 0)") as running:
            pids = facts_of(running)
            assert not any(map(is_gone, pids))
            running.kill()

    def test_it_outlives_the_process_that_was_forked(self, plain, fork_server, file):
        exits = Exits()
        plain.on_exit(exits)
        server = fork_server()
        child = plain.start("one", REPORT_FORK, {"file": str(file)}, starter=server)
        read_facts(file)
        server.close()
        assert child.exit_code is None
        os.kill(child.pid, signal.SIGKILL)
        exits.event.wait(30)
        assert exits.seen == [("one", child.pid, -signal.SIGKILL)]


class TestAFreshOneInstead:
    @pytest.mark.parametrize("imports", ["starts_a_thread", "opens_a_file"])
    def test_what_a_fork_would_lack_or_share_makes_it_a_fresh_one(
        self, plain, fork_server, file, imports
    ):
        child = plain.start("one", REPORT_FORK, {"file": str(file)}, starter=fork_server(imports))
        facts = read_facts(file)
        assert not facts["is_fork"]
        assert child.pid == facts["pid"]

    def test_the_reason_names_the_file(self, plain, fork_server, file, capfd):
        """Such as the device that imports have opened."""
        plain.start("one", REPORT_FORK, {"file": str(file)}, starter=fork_server("opens_a_file"))
        assert not read_facts(file)["is_fork"]
        assert "what was imported has opened /dev/null" in capfd.readouterr().err

    def test_what_numpy_is_told_elsewhere_starts_no_threads(
        self, plain, fork_server, file, monkeypatch
    ):
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
        plain.start("one", REPORT_FORK, {"file": str(file)}, starter=fork_server("imports_numpy"))
        assert read_facts(file)["is_fork"]

    def test_a_server_that_has_ended(self, plain, fork_server, file):
        server = fork_server()
        server.close()
        assert not server.is_alive
        plain.start("one", REPORT_FORK, {"file": str(file)}, starter=server)
        assert not read_facts(file)["is_fork"]

    def test_a_server_that_is_killed_while_it_is_waited_for(self, plain, fork_server, file):
        server = fork_server(argument="600")
        plain.start("one", REPORT_FORK, {"file": str(file)}, starter=server)
        server.process.send_signal(signal.SIGKILL)
        assert not read_facts(file)["is_fork"]

    def test_a_server_that_is_stopped_is_ended(
        self, plain, fork_server, file, tmp_path, monkeypatch
    ):
        """One that does not answer holds up no start."""
        server = fork_server()
        first = tmp_path / "first"
        plain.start("one", REPORT_FORK, {"file": str(first)}, starter=server)
        assert read_facts(first)["is_fork"]
        monkeypatch.setattr(forks, "ANSWER_TIMEOUT_S", 0.2)
        server.process.send_signal(signal.SIGSTOP)
        plain.start("two", REPORT_FORK, {"file": str(file)}, starter=server)
        assert not read_facts(file)["is_fork"]
        assert not server.is_alive
        assert not server.has_given_up  # the next start may begin another one
        assert not adopts()

    @pytest.mark.parametrize("limit", [1, 2], ids=["the server", "its fork"])
    def test_a_server_that_may_not_fork(self, plain, fork_server, file, limit):
        """It reports that, or exits, and the caller does not wait."""
        server = fork_server("forbids_forks", str(limit))
        plain.start("one", REPORT_FORK, {"file": str(file)}, starter=server)
        assert not read_facts(file)["is_fork"]
        assert server.is_alive == (limit == 2)

    def test_imports_that_fail_are_left_to_the_fork(self, plain, fork_server, file):
        plain.start("one", REPORT_FORK, {"file": str(file)}, starter=fork_server("fails"))
        assert read_facts(file)["pid"]

    def test_a_folder_that_is_gone_is_no_reason_to_fail(
        self, plain, fork_server, file, tmp_path, monkeypatch
    ):
        server = fork_server()
        gone = tmp_path / "gone"
        gone.mkdir()
        monkeypatch.chdir(gone)
        gone.rmdir()
        plain.start("one", "tenonry_testkit.roles:sleep", {"file": str(file)}, starter=server)
        assert read_facts(file)["pid"]


@pytest.mark.parametrize("is_early", [True, False], ids=["before it is ready", "afterwards"])
def test_a_server_whose_owner_has_gone_ends_and_says_nothing(is_early):
    """Also where the owner has not read that it is ready."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    source = (
        "from tenonry_launcher_fork.fork_server import serve; raise SystemExit("
        f"serve(dict(channel='{theirs.fileno()}', imports='{ROLES}:imports', argument='')))"
    )
    with theirs, ours:
        if is_early:
            ours.close()
        process = subprocess.Popen(
            [sys.executable, "-c", source],
            pass_fds=[theirs.fileno()],
            stderr=subprocess.PIPE,
            env={**os.environ, **supervise.CHILD_DEFAULTS},
        )
        theirs.close()
        if not is_early:
            assert select.select([ours], [], [], 30)[0]
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (0, b"")


class TestBeforeItBegins:
    def test_it_is_stopped_at_once(self, plain, fork_server, file):
        exits = Exits()
        plain.on_exit(exits)
        child = plain.start(
            "one", REPORT_FORK, {"file": str(file)}, starter=fork_server(argument="600")
        )
        assert child.exit_code is None
        assert plain.pids() == {}
        started = time.monotonic()
        plain.stop()
        assert time.monotonic() - started < 5
        assert child.exit_code == -STOP_SIGNAL
        assert not file.exists()
        assert exits.seen == []

    def test_a_process_that_is_born_too_late_is_killed(self):
        asked = threading.Event()
        is_stopped = threading.Event()
        born: list[ForkedProcess] = []

        def start() -> ForkedProcess:
            asked.set()
            is_stopped.wait(30)
            born.append(ForkedProcess(spawned("import time; time.sleep(600)")))
            return born[0]

        later = LaterProcess([start], bool)
        beginner = threading.Thread(target=later.begin)
        beginner.start()
        asked.wait(30)
        later.send_signal(STOP_SIGNAL)
        assert later.wait(0) == -STOP_SIGNAL
        is_stopped.set()
        beginner.join(30)
        assert born[0].poll() == -signal.SIGKILL
        assert later.poll() == -STOP_SIGNAL
        assert later.pid == 0

    def test_one_that_cannot_be_started_has_ended(self):
        def start() -> ForkedProcess:
            raise OSError("no memory")

        later = LaterProcess([start], bool)
        with pytest.raises(subprocess.TimeoutExpired):
            later.wait(0)
        later.begin()
        assert later.wait() == 1

    def test_one_whose_server_is_closed_begins_in_no_other_way(self, caplog):
        """Its owner shuts down: a fresh interpreter would start for nothing."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server = ForkServer(ForkedProcess(spawned("import time; time.sleep(600)")), ours)
        start = SimpleNamespace(environment={}, fds=(), message=b"")
        begun = []
        later = LaterProcess([partial(server._fork, start), lambda: begun.append("fresh")], bool)
        beginner = threading.Thread(target=later.begin)
        with caplog.at_level(logging.INFO), theirs:
            beginner.start()
            server.close()
            beginner.join(30)
        assert later.wait(0) == 1
        assert not begun
        assert not caplog.records


def spawned(source: str) -> int:
    """Process id of a child unknown to everything else here."""
    return os.posix_spawn(sys.executable, [sys.executable, "-c", source], os.environ)


class TestAForkedProcess:
    def test_its_end_is_waited_for_by_several_threads(self):
        source = "import signal, sys; signal.sigwait({signal.SIGUSR1}); sys.exit(7)"
        held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        process = ForkedProcess(spawned(source))  # which inherits that
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        codes: list[int] = []
        waiters = [threading.Thread(target=lambda: codes.append(process.wait())) for _ in range(4)]
        for waiter in waiters:
            waiter.start()
        process.send_signal(signal.SIGUSR1)
        for waiter in waiters:
            waiter.join(30)
        assert codes == [7] * 4
        process.send_signal(signal.SIGKILL)  # no other process has its number

    def test_one_that_something_else_waited_for_has_ended(self):
        process = ForkedProcess(spawned("import sys; sys.exit(3)"))
        os.waitpid(process.pid, 0)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == 0
