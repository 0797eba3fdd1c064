"""No child outlives its parent, however that ends."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from tenonry.launch.supervise import STOP_SIGNAL, Child, Supervisor, start_child, stop_children
from tenonry_testkit.kernel.exits import Exits
from tenonry_testkit.kernel.roles import is_gone
from tenonry_testkit.roles import eventually, read_facts

pytestmark = pytest.mark.integration


class TestLifetime:
    """PM-4, Q6: no child outlives its parent, however that ends."""

    def test_a_collected_supervisor_stops_its_children_without_a_word(self, file):
        exits = Exits()
        supervisor = Supervisor()
        supervisor.on_exit(exits)
        child = supervisor.start("one", "tenonry_testkit.roles:sleep", {"file": str(file)})
        read_facts(file)
        del supervisor
        gc.collect()
        eventually(lambda: child.exit_code == -STOP_SIGNAL)
        eventually(lambda: not _watchers())
        assert exits.seen == []

    def test_a_closed_lifeline_ends_a_child(self, file):
        child = start_child("one", "tenonry_testkit.roles:sleep", {"file": str(file)})
        read_facts(file)
        child.release()
        eventually(lambda: child.exit_code == 70)

    def test_the_end_of_the_thread_that_started_it_is_not_the_end_of_a_child(self, file):
        """The parent-death signal belongs to a thread; a child started by a helper thread must do without it."""
        children: list[Child] = []
        starter = threading.Thread(
            target=lambda: children.append(
                start_child("one", "tenonry_testkit.roles:sleep", {"file": str(file)})
            )
        )
        starter.start()
        starter.join()
        read_facts(file)
        assert children[0].exit_code is None
        stop_children(children)

    PARENT = """
import os, sys, threading, time
from tenonry.launch.supervise import Supervisor
supervisor = Supervisor()
start = lambda: supervisor.start("one", "{role}", {{"file": sys.argv[1]}})
if {thread}:
    starter = threading.Thread(target=start); starter.start(); starter.join()
else:
    start()
{then}
"""

    def parent(
        self,
        file: Path,
        then: str,
        *,
        thread: bool = False,
        role: str = "tenonry_testkit.roles:sleep",
    ) -> subprocess.Popen[bytes]:
        source = self.PARENT.format(then=then, thread=thread, role=role)
        path = os.pathsep.join(sys.path)
        environment = {**os.environ, "PYTHONPATH": path}
        return subprocess.Popen(
            [sys.executable, "-c", source, str(file)], env=environment, stdout=subprocess.PIPE
        )

    @pytest.mark.parametrize("thread", [False, True], ids=["death signal", "lifeline alone"])
    def test_a_child_ends_with_a_parent_that_is_killed(self, file, thread):
        """Fault 12: SIGKILL leaves no time for anything."""
        with self.parent(file, "time.sleep(600)", thread=thread) as parent:
            pid = read_facts(file)["pid"]
            parent.kill()
        eventually(lambda: is_gone(pid), seconds=5)

    @pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal")
    def test_a_fork_of_the_parent_does_not_keep_a_child_alive(self, file):
        """Fault 30: user code that forks holds the lifeline open, too."""
        then = "fork = os.fork() or time.sleep(600)\nprint(fork, flush=True)\ntime.sleep(600)"
        with self.parent(file, then) as parent:
            pid = read_facts(file)["pid"]
            assert parent.stdout is not None
            fork = psutil.Process(int(parent.stdout.readline()))
            parent.kill()
            try:
                eventually(lambda: is_gone(pid), seconds=5)
            finally:
                fork.kill()

    def test_a_fork_of_the_parent_that_ends_leaves_the_children_alone(self, file):
        """Fault 30: a fork made by user code runs our finalizers when it ends, and the children are not its own."""
        then = "fork = os.fork() or sys.exit()\nprint(os.waitpid(fork, 0)[1], flush=True)\ntime.sleep(600)"
        with self.parent(
            file,
            "import pathlib; from tenonry_testkit import roles\n"
            "roles.read_facts(pathlib.Path(sys.argv[1]))\n" + then,
        ) as parent:
            pid = read_facts(file)["pid"]
            try:
                assert parent.stdout is not None
                assert parent.stdout.readline() == b"0\n"
                assert not is_gone(pid)
            finally:
                parent.kill()
        eventually(lambda: is_gone(pid), seconds=5)

    def test_a_child_that_ignores_sigterm_ends_with_a_parent_that_is_killed(self, file):
        with self.parent(
            file, "time.sleep(600)", role="tenonry_testkit.kernel.roles:stubborn"
        ) as parent:
            facts = read_facts(file)
            parent.kill()
        eventually(lambda: is_gone(facts["pid"]), seconds=5)
        psutil.Process(facts["grandchild"]).kill()  # no child of ours: nothing stops it

    @pytest.mark.parametrize(
        "then",
        [
            "__import__('tenonry_testkit.roles').roles.read_facts(__import__('pathlib').Path(sys.argv[1]))"
        ],
    )
    def test_a_child_ends_with_a_parent_that_just_ends(self, file, then):
        with self.parent(file, then) as parent:
            pid = read_facts(file)["pid"]
            assert parent.wait(30) == 0
        eventually(lambda: is_gone(pid), seconds=5)


def _watchers() -> list[Any]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("watch ")]
