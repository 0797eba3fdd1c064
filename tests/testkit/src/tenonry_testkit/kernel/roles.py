"""Roles of these tests' children, in addition to `tenonry_testkit.roles`. Child processes and the test process."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from tenonry.launch.spawn import GROUP_SIGNALS
from tenonry.launch.supervise import STOP_SIGNAL, Heartbeat
from tenonry_testkit.roles import write_facts

IGNORE_AND_SLEEP = "import signal, time; signal.signal(signal.SIGUSR1, signal.SIG_IGN); print(flush=True); time.sleep(600)"  # noqa: E501


def send_heartbeats(payload: Mapping[str, str]) -> int:
    """Send the heartbeats of `states` ("+" alive, "-" paused, "*" begun); then end if "." follows, else idle."""
    heartbeat = Heartbeat(int(payload["heartbeat"]))
    for state in payload["states"]:
        if state == "+":
            heartbeat.send()
        elif state == "-":
            heartbeat.pause()
        elif state == "*":
            heartbeat.begin()
        else:
            return 0
    time.sleep(600)
    return 0


def wait_for_descendant(payload: Mapping[str, str]) -> int:
    """Send a heartbeat, pause heartbeats, and wait for a child."""
    heartbeat = Heartbeat(int(payload["heartbeat"]))
    heartbeat.send()
    heartbeat.pause()
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(command) as grandchild:
        write_facts(payload, {"pid": os.getpid(), "grandchild": grandchild.pid})
    return 0


def leave(payload: Mapping[str, str]) -> int:
    """Exit immediately with the given status."""
    return int(payload["status"])


def kill_itself(payload: Mapping[str, str]) -> int:
    """End by a signal."""
    os.kill(os.getpid(), int(payload["signal"]))
    return 0


def stubborn(payload: Mapping[str, str]) -> int:
    """Ignore STOP_SIGNAL, together with a child."""
    signal.signal(STOP_SIGNAL, signal.SIG_IGN)
    with subprocess.Popen(
        [sys.executable, "-c", IGNORE_AND_SLEEP], stdout=subprocess.PIPE
    ) as grandchild:
        assert grandchild.stdout is not None
        grandchild.stdout.readline()
        write_facts(payload, {"pid": os.getpid(), "grandchild": grandchild.pid})
        time.sleep(600)
    return 0


def polite(payload: Mapping[str, str]) -> int:
    """End on STOP_SIGNAL with status 0, leaving a child that does not."""
    signal.signal(STOP_SIGNAL, lambda *_: sys.exit(0))
    with subprocess.Popen(
        [sys.executable, "-c", IGNORE_AND_SLEEP], stdout=subprocess.PIPE
    ) as grandchild:
        assert grandchild.stdout is not None
        grandchild.stdout.readline()
        try:  # the signal may come as soon as the facts are there
            write_facts(payload, {"pid": os.getpid(), "grandchild": grandchild.pid})
            time.sleep(600)
        finally:
            os._exit(0)


def report(payload: Mapping[str, str]) -> int:
    """Write the facts visible to a child: its payload, environment, signals, descriptors."""
    facts = {
        "payload": dict(payload),
        "title": " ".join(psutil.Process().cmdline()),
        "environment": dict(os.environ),
        "path": sys.path,
        "argv": sys.argv,
        "stdin": sys.stdin.read(),
        "ignores": {
            number.name: signal.getsignal(number) is signal.SIG_IGN for number in GROUP_SIGNALS
        },
        "held": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "descriptors": sorted(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
        if sys.platform == "linux"
        else [],
        "multiprocessing": "multiprocessing" in sys.modules,
        "collects_garbage": gc.isenabled(),
        "frozen": gc.get_freeze_count(),
    }
    write_facts(payload, facts)
    return 0


def is_gone(pid: int) -> bool:
    """True if no such process runs (a zombie does not)."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
