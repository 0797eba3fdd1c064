"""Conformance suite for process starters: children start, are supervised, and end (PM-4 to PM-8, Q6, fault 12).

class TestMine(ProcessStarterContract):
    @pytest.fixture
    def starter(self): ...
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenonry.launch import supervise
from tenonry.launch.spawn import GROUP_SIGNALS, ProcessStarter
from tenonry.launch.supervise import FRESH, STOP_SIGNAL, Child, Supervisor
from tenonry_testkit.kernel.exits import Exits
from tenonry_testkit.kernel.roles import is_gone
from tenonry_testkit.roles import eventually, read_facts


class StartingSupervisor(Supervisor):
    """Uses one starter for all children."""

    def __init__(self, starter: ProcessStarter) -> None:
        super().__init__()
        self._starter = starter

    def start(self, *args: Any, **options: Any) -> Child:
        return super().start(*args, starter=self._starter, **options)


class ProcessStarterContract:
    """Rules for the children of any process starter, from the view of a `Supervisor`."""

    @pytest.fixture
    def starter(self) -> Iterator[ProcessStarter]:
        """Return the starter under test; an author overrides it."""
        yield FRESH

    @pytest.fixture
    def supervisor(self, starter: ProcessStarter) -> Iterator[Supervisor]:
        made = StartingSupervisor(starter)
        yield made
        made.stop(0.1)

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        return tmp_path / "said"

    # ------------------------------------------------------------------ start
    def test_a_child_gets_its_role_as_text_and_nothing_by_pickle(
        self, supervisor, file, monkeypatch
    ):
        monkeypatch.setenv("FROM_PARENT", "yes")
        monkeypatch.syspath_prepend(str(file.parent))
        payload = {"file": str(file), "text": "ä\n" * 50_000}
        supervisor.start(
            "some thing", "tenonry_testkit.kernel.roles:report", payload, environment={"EXTRA": "1"}
        )
        facts = read_facts(file)
        assert facts["payload"].items() >= payload.items()
        assert facts["title"].startswith("tenonry: some thing")
        assert facts["environment"]["FROM_PARENT"] == "yes"
        assert facts["environment"]["EXTRA"] == "1"
        assert str(file.parent) in facts["path"]
        assert facts["stdin"] == ""
        assert facts["ignores"] == {"SIGHUP": True, "SIGINT": True, "SIGTERM": True}
        assert facts["held"] == []
        assert not facts["multiprocessing"]
        assert facts["collects_garbage"]
        assert facts["frozen"] > 1000  # modules; collections skip them

    @pytest.mark.parametrize("number", GROUP_SIGNALS)
    def test_what_reaches_a_whole_group_means_nothing_to_it_from_its_first_moment_on(
        self, supervisor, file, number
    ):
        held = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        child = supervisor.start("x", "tenonry_testkit.kernel.roles:report", {"file": str(file)})
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == held
        while child.exit_code is None:
            child.process.send_signal(number)
            time.sleep(0.001)
        assert child.exit_code == 0

    def test_the_working_directory_is_not_on_its_path(
        self, supervisor, file, tmp_path, monkeypatch
    ):
        """A file in the user's folder must not shadow a module of the child."""
        (tmp_path / "json.py").write_text("raise SystemExit('shadowed')", "utf-8")
        monkeypatch.chdir(tmp_path)
        child = supervisor.start("x", "tenonry_testkit.kernel.roles:report", {"file": str(file)})
        read_facts(file)
        eventually(lambda: child.exit_code == 0)

    @pytest.mark.skipif(sys.platform != "linux", reason="/proc")
    def test_it_inherits_no_socket_and_no_file(self, supervisor, file):
        reading, writing = os.pipe()
        os.set_inheritable(writing, True)
        try:
            supervisor.start("x", "tenonry_testkit.kernel.roles:report", {"file": str(file)})
            descriptors = read_facts(file)["descriptors"]
        finally:
            os.close(reading)
            os.close(writing)
        assert (
            len(descriptors) <= 6
        )  # three standard ones, lifeline, heartbeat, and the listing itself

    def test_a_role_that_does_not_exist_ends_the_child_with_a_traceback(self, supervisor, capfd):
        child = supervisor.start("x", "tenonry_testkit.kernel.roles:no_such_role", {})
        eventually(lambda: child.exit_code is not None)
        assert child.exit_code == 1
        assert "no_such_role" in capfd.readouterr().err

    # ------------------------------------------------------------------ exit
    def test_callbacks_hear_name_pid_and_code(self, supervisor):
        exits = Exits()
        supervisor.on_exit(exits)
        child = supervisor.start("one", "tenonry_testkit.kernel.roles:leave", {"status": "3"})
        assert exits.event.wait(30)
        assert exits.seen == [("one", child.pid, 3)]
        assert supervisor.finished() == {"one": 3}
        assert supervisor.pids() == {}

    def test_a_signal_is_a_negative_code(self, supervisor):
        exits = Exits()
        supervisor.on_exit(exits)
        supervisor.start(
            "one", "tenonry_testkit.kernel.roles:kill_itself", {"signal": str(int(signal.SIGKILL))}
        )
        assert exits.event.wait(30)
        assert exits.seen[0][2] == -signal.SIGKILL

    def test_only_those_that_ended_are_finished(self, supervisor, file):
        running = supervisor.start("running", "tenonry_testkit.roles:sleep", {"file": str(file)})
        supervisor.start("ended", "tenonry_testkit.kernel.roles:leave", {"status": "0"})
        read_facts(file)
        eventually(lambda: supervisor.finished() == {"ended": 0})
        assert supervisor.pids() == {"running": running.pid}

    def test_nobody_hears_of_an_end_that_was_asked_for(self, supervisor, file):
        exits = Exits()
        supervisor.on_exit(exits)
        supervisor.start("one", "tenonry_testkit.roles:sleep", {"file": str(file)})
        read_facts(file)
        supervisor.stop()
        eventually(lambda: not _watchers())
        assert exits.seen == []

    # ------------------------------------------------------------------ silence
    def test_one_that_lived_and_says_no_more_is_killed(self, supervisor, caplog):
        exits = Exits()
        supervisor.on_exit(exits)
        for states in ("+", "+-+", "", "+-", "-"):
            supervisor.start(
                f"states {states}",
                "tenonry_testkit.kernel.roles:send_heartbeats",
                {"states": states},
                silence_s=2,
            )
        eventually(lambda: len(exits.seen) == 2)
        time.sleep(1.5)
        assert sorted((name, code) for name, _, code in exits.seen) == [
            ("states +", -9),
            ("states +-+", -9),
        ]
        assert caplog.text.count("has sent no heartbeat for 2 s") == 2

    def test_one_that_stays_stopped_is_killed(self, supervisor, file, caplog, monkeypatch):
        """Independently of the limit of its silence. It is responsible for its own children."""
        monkeypatch.setattr(supervise, "STOPPED_S", 2.0)
        exits = Exits()
        supervisor.on_exit(exits)
        role = "tenonry_testkit.kernel.roles:wait_for_descendant"
        facts = {}
        for name in ("stopped", "waiting"):
            payload = {"file": str(file.with_name(name))}
            supervisor.start(name, role, payload)
            facts[name] = read_facts(file.with_name(name))
        os.kill(facts["waiting"]["grandchild"], signal.SIGSTOP)
        os.kill(facts["stopped"]["pid"], signal.SIGSTOP)
        eventually(lambda: exits.seen)
        assert exits.seen == [("stopped", facts["stopped"]["pid"], -signal.SIGKILL)]
        assert caplog.text.count("was stopped by a signal for 2 s; killing it") == 1
        eventually(lambda: is_gone(facts["stopped"]["grandchild"]))
        assert list(supervisor.pids()) == ["waiting"]

    def test_one_that_continues_in_time_may_be_stopped_again(self, supervisor, file, monkeypatch):
        """Only uninterrupted seconds of a stop count."""
        monkeypatch.setattr(supervise, "STOPPED_S", 3.0)
        role = "tenonry_testkit.kernel.roles:wait_for_descendant"
        child = supervisor.start("x", role, {"file": str(file)})
        read_facts(file)
        for _ in range(2):
            child.process.send_signal(signal.SIGSTOP)
            time.sleep(1.5)
            child.process.send_signal(signal.SIGCONT)
            time.sleep(1.5)
        assert child.exit_code is None

    # ------------------------------------------------------------------ work
    def test_its_heartbeat_says_so_though_it_ends_at_once(self, supervisor):
        exits = Exits()
        supervisor.on_exit(exits)
        for states in ("+.", "+*.", "*.", "-*-."):
            supervisor.start(
                states,
                "tenonry_testkit.kernel.roles:send_heartbeats",
                {"states": states},
                silence_s=30,
            )
        eventually(lambda: len(exits.seen) == 4)
        found = {states: supervisor.has_begun(states) for states, _, _ in exits.seen}
        assert found == {"+.": False, "+*.": True, "*.": True, "-*-.": True}
        assert supervisor.has_begun("another one")

    # ------------------------------------------------------------------ stop
    def test_a_child_that_listens_ends_by_its_parents_signal(self, supervisor, file):
        child = supervisor.start("one", "tenonry_testkit.roles:sleep", {"file": str(file)})
        read_facts(file)
        supervisor.stop()
        assert child.exit_code == -STOP_SIGNAL

    def test_one_that_does_not_is_killed_with_its_descendants(self, supervisor, file, caplog):
        child = supervisor.start(
            "engine 3", "tenonry_testkit.kernel.roles:stubborn", {"file": str(file)}
        )
        grandchild = read_facts(file)["grandchild"]
        supervisor.stop(0.2)
        assert child.exit_code == -signal.SIGKILL
        eventually(lambda: is_gone(grandchild))
        assert f"engine 3 (pid {child.pid}) did not stop within 0.2 s; killing it" in caplog.text

    def test_what_a_polite_child_leaves_behind_is_killed_too(self, supervisor, file):
        child = supervisor.start("one", "tenonry_testkit.kernel.roles:polite", {"file": str(file)})
        grandchild = read_facts(file)["grandchild"]
        supervisor.stop()
        assert child.exit_code == 0
        eventually(lambda: is_gone(grandchild))

    def test_it_may_be_called_again_and_after_everybody_ended(self, supervisor):
        child = supervisor.start("one", "tenonry_testkit.kernel.roles:leave", {"status": "0"})
        eventually(lambda: child.exit_code == 0)
        supervisor.stop()
        supervisor.stop()

    def test_only_its_own_children_are_stopped(self, supervisor, file):
        """PM-4: never the processes of another program."""
        with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as other:
            supervisor.start("one", "tenonry_testkit.roles:sleep", {"file": str(file)})
            read_facts(file)
            supervisor.stop()
            assert other.poll() is None
            other.kill()


def _watchers() -> list[Any]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("watch ")]
