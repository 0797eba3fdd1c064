"""Children start, are watched, and end: with their parent at the latest (PM-4 to PM-8, Q6, fault 12)."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tenonry.errors import LaunchError
from tenonry.launch import supervise
from tenonry.launch.supervise import (
    STOP_SIGNAL,
    Child,
    describe_exit,
    kill_tree,
    start_child,
    stop_children,
)
from tenonry_testkit.kernel.roles import is_gone
from tenonry_testkit.process_starter import ProcessStarterContract
from tenonry_testkit.roles import eventually, read_facts

pytestmark = pytest.mark.integration


class TestFreshInterpreter(ProcessStarterContract):
    """The kernel's own starter."""


class TestStart:
    def test_a_parent_that_is_told_to_end_while_it_starts_one_leaves_no_traceback(self):
        command = [sys.executable, "-P", "-m", "tenonry.launch.child"]
        ended = subprocess.run(command, check=False, capture_output=True, input=b"")
        assert ended.returncode == 70
        assert ended.stdout == b""
        assert ended.stderr == b""

    def test_a_descriptor_can_be_passed(self, file):
        reading, writing = os.pipe()
        child = start_child(
            "x", "tenonry_testkit.kernel.roles:report", {"file": str(file)}, pass_fds=[writing]
        )
        assert writing in read_facts(file)["descriptors"]
        os.close(writing)
        stop_children([child])
        assert os.read(reading, 1) == b""
        os.close(reading)

    def test_an_interpreter_that_cannot_be_started_is_named_and_leaves_nothing(self, monkeypatch):
        monkeypatch.setattr(supervise.sys, "executable", "/no/such/python")
        gc.collect()  # close leftovers of earlier tests now, not during this one
        before = _open_files()
        with pytest.raises(
            LaunchError, match=r"engine 7 cannot be started: .*No such file.*'/no/such/python'"
        ):
            start_child("engine 7", "tenonry_testkit.roles:sleep", {})
        assert _open_files() == before

    def test_a_child_that_dies_before_it_reads_is_no_error_of_the_start(
        self, monkeypatch, tmp_path
    ):
        script = tmp_path / "dies"
        script.write_text("#!/bin/sh\nexec 0<&-\nexit 3\n", "utf-8")
        script.chmod(0o755)
        monkeypatch.setattr(supervise.sys, "executable", str(script))
        child = start_child("x", "r:f", {"text": "x" * 1_000_000})  # more than a pipe holds
        eventually(lambda: child.exit_code == 3)
        child.release()
        assert child.process.stdin is not None
        assert child.process.stdin.closed


class TestExit:
    """PM-8: who ended, and how."""

    @pytest.mark.parametrize(
        ("code", "text"),
        [
            (0, "exit code 0"),
            (1, "exit code 1"),
            (-9, "signal SIGKILL"),
            (-15, "signal SIGTERM"),
            (-200, "signal 200"),
        ],
    )
    def test_exit_codes_in_words(self, code, text):
        assert describe_exit(code) == text


class TestStop:
    """PM-5: terminate, one shared deadline, then the process tree of each survivor."""

    def test_all_children_share_one_deadline(self, monkeypatch):
        clock = [100.0]
        monkeypatch.setattr(supervise.time, "monotonic", lambda: clock[0])
        monkeypatch.setattr(supervise, "kill_tree", lambda pid: None)
        waits: list[float | None] = []

        class Process:
            pid, returncode = -1, None

            def poll(self) -> None: ...

            def send_signal(self, number: int) -> None: ...

            def wait(self, timeout: float | None = None) -> None:
                waits.append(timeout)
                if timeout is not None:
                    clock[0] += min(timeout, 3.0)
                    raise subprocess.TimeoutExpired("x", timeout)

        monkeypatch.setattr(supervise, "_tree", lambda pid: [])
        stop_children([Child(f"{i}", Process(), -1) for i in range(4)])  # type: ignore[arg-type]
        assert [wait for wait in waits if wait is not None] == [5.0, 2.0, 0.0, 0.0]

    def test_any_iterable_of_children_will_do(self, file):
        child = start_child("one", "tenonry_testkit.roles:sleep", {"file": str(file)})
        read_facts(file)
        gc.collect()
        before = _open_files()
        stop_children(iter([child]))
        assert child.exit_code == -STOP_SIGNAL
        if before:
            assert len(_open_files()) == len(before) - 1  # the lifeline is closed

    def test_one_that_waits_for_a_descendant_does_not_see_it_end(self, file, monkeypatch):
        """Else it could end by itself, with a code of its own, before it is killed."""
        kill = psutil.Process.kill
        monkeypatch.setattr(
            psutil.Process, "kill", lambda process: (kill(process), time.sleep(0.3))
        )
        role = "tenonry_testkit.kernel.roles:wait_for_descendant"
        child = start_child("one", role, {"file": str(file), "heartbeat": "-1"})
        grandchild = read_facts(file)["grandchild"]
        kill_tree(child.pid)
        eventually(lambda: child.exit_code is not None)
        assert child.exit_code == -signal.SIGKILL
        assert is_gone(grandchild)
        child.release()

    def test_killing_a_tree_that_is_gone_is_fine(self):
        kill_tree(2**22 + 12345)


def _open_files() -> list[str]:
    return (
        [entry.name for entry in Path("/proc/self/fd").iterdir()] if sys.platform == "linux" else []
    )
