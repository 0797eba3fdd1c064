"""Runs a piece of work in a process of its own, with limits of time and memory, and returns its result."""

from __future__ import annotations

import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

CPU_LIMIT_S = 120
TIME_LIMIT_S = 1200  # for what hangs: a machine that is merely busy passes
MEMORY_LIMIT_BYTES = 12 << 30
LIMITS = {signal.SIGALRM: "time limit", signal.SIGXCPU: "limit of processor time"}


class Ended(msgspec.Struct):
    """End of a process: `result` of its work, or `error` with the reason why there is none."""

    name: str
    result: bytes = b""
    error: str = ""
    log: str = ""
    seconds: float = 0.0


def run_all(
    work: Callable[[str], bytes],
    names: Iterable[str],
    *,
    jobs: int = 1,
    cpu_limit_s: int = CPU_LIMIT_S,
    time_limit_s: int = TIME_LIMIT_S,
) -> Iterator[Ended]:
    """Call `work` with each name in a forked process, `jobs` at a time; in the order in which they end."""
    waiting = list(names)[::-1]
    running: dict[int, tuple[str, Path, float]] = {}
    with tempfile.TemporaryDirectory(prefix="parity-") as folder:
        while waiting or running:
            while waiting and len(running) < jobs:
                name = waiting.pop()
                place = Path(folder, f"{len(waiting)}")
                pid = _start(work, name, place, cpu_limit_s, time_limit_s)
                running[pid] = (name, place, time.monotonic())
            pid, status = os.wait()
            if pid in running:
                name, place, started = running.pop(pid)
                yield _ended(name, place, status, time.monotonic() - started)


def _start(
    work: Callable[[str], bytes], name: str, place: Path, cpu_limit_s: int, time_limit_s: int
) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        _limit(place.with_suffix(".log"), cpu_limit_s, time_limit_s)
        place.write_bytes(work(name))
    except BaseException:
        os.write(2, traceback.format_exc().encode())  # the parent reads it in the log
        os._exit(1)
    os._exit(0)


def _limit(log: Path, cpu_limit_s: int, time_limit_s: int) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(time_limit_s)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_limit_s, cpu_limit_s + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))


def _ended(name: str, place: Path, status: int, seconds: float) -> Ended:
    log_file = place.with_suffix(".log")
    log = log_file.read_text("utf-8", errors="replace") if log_file.exists() else ""
    if status == 0:
        return Ended(name, place.read_bytes(), log=log, seconds=seconds)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        what = LIMITS.get(number) or signal.Signals(number).name
        return Ended(name, error=f"ended by {what}", log=log, seconds=seconds)
    lines = [line for line in log.splitlines() if line.strip()]
    return Ended(name, error=lines[-1] if lines else "failed", log=log, seconds=seconds)
