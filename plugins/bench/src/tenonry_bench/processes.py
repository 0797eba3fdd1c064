"""CPU time and memory of a process and its children, and commands timed from a cold start. The measuring process."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import psutil

from tenonry.errors import TenonryError

CPU_CLOCK = 2  # the clock of time on the CPU, among the three that Linux keeps per process (clock_getcpuclockid(3))


def cpu_seconds(process: psutil.Process) -> float:
    """CPU time, user and system, of all threads of a process that lives, those that ended included.

    On Linux from the process's own CPU clock, in nanoseconds: psutil's figures count in ticks of 10 ms.
    """
    if sys.platform == "linux":
        try:
            return time.clock_gettime((~process.pid << 3) | CPU_CLOCK)
        except OSError:
            process.cpu_times()  # raises psutil.NoSuchProcess if that is why
    times = process.cpu_times()
    return times.user + times.system


def below(pid: int | None = None) -> list[psutil.Process]:
    """All processes below one; without a `pid`, below this one."""
    return psutil.Process(pid).children(recursive=True)


class CpuMeter:
    """CPU seconds of this process and, apart from it, of `others`, since the previous reading.

    The others are by default all processes below this one. Readings raise TenonryError once one of them has ended.
    """

    def __init__(self, others: Sequence[psutil.Process] | None = None) -> None:
        self._others = below() if others is None else others
        self._last = self._read()

    def take(self) -> tuple[float, float]:
        """(this process, the others)."""
        last, self._last = self._last, self._read()
        return self._last[0] - last[0], self._last[1] - last[1]

    def _read(self) -> tuple[float, float]:
        try:
            return time.process_time(), sum(cpu_seconds(other) for other in self._others)
        except psutil.NoSuchProcess as error:
            raise TenonryError(
                f"process {error.pid} ended while its CPU time was measured"
            ) from None


class PeakMemory:
    """Peak resident memory of a process and all below it, sampled once a second while the `with` block runs.

    `pss_bytes` counts shared pages once; reading it walks every mapping, so it is read once, at the end.
    """

    def __init__(self, pid: int | None = None, period_s: float = 1.0) -> None:
        self._root, self._period_s = psutil.Process(pid), period_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak-memory", daemon=True)
        self.rss_bytes = self.pss_bytes = 0

    def _watch(self) -> None:
        while not self._done.wait(self._period_s):
            self._sample()

    def _sample(self) -> None:
        self.rss_bytes = max(self.rss_bytes, self._sum(lambda process: process.memory_info().rss))

    def _sum(self, read: Callable[[psutil.Process], int]) -> int:
        total = 0
        with contextlib.suppress(psutil.NoSuchProcess):  # the root itself may be gone at the end
            for process in [self._root, *self._root.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    total += read(process)
        return total

    def __enter__(self) -> Self:
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._sample()
        self.pss_bytes = self._sum(lambda process: getattr(process.memory_full_info(), "pss", 0))


def tenonry_command() -> list[str]:
    """Command that starts `tenonry` as a user does: the script next to this interpreter, or the one on the PATH."""
    beside = Path(sys.executable).parent / "tenonry"
    found = str(beside) if beside.exists() else shutil.which("tenonry")
    return (
        [found]
        if found
        else [sys.executable, "-c", "import sys; from tenonry.cli import main; sys.exit(main())"]
    )


def seconds_until(command: Sequence[str], marker: str) -> float:
    """Start a command; seconds until it prints a line with `marker`. It may then end as it likes.

    Raises TenonryError with its last words if it never prints the marker.
    """
    started = time.perf_counter()
    found = None
    lines: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8"
    ) as process:
        for line in process.stdout or ():
            if found is None and marker in line:
                found = time.perf_counter() - started
            lines.append(line.rstrip())
    if found is None:
        tail = "\n".join(lines[-15:])
        raise TenonryError(
            f"{' '.join(command)} ended with status {process.returncode} before it printed {marker}:\n{tail}"
        )
    return found


def seconds_to_run(command: Sequence[str]) -> float:
    """Run a command to its end; wall seconds. Raises TenonryError with its last words if its status is not 0."""
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    elapsed = time.perf_counter() - started
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise TenonryError(f"{' '.join(command)} ended with status {done.returncode}:\n{tail}")
    return elapsed
