"""Current speed of the machine, to compare figures of two moments or machines. Any process."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import msgspec

TURNS = 1_000_000
ROUND_TRIPS = 400
ECHO = """
import os
while data := os.read(0, 1):
    os.write(1, data)
"""


class Pace(msgspec.Struct, kw_only=True):
    """`loop_ms`: a Python loop of a million turns. `round_trip_us`: a byte to another process and back, the median."""

    loop_ms: float
    round_trip_us: float

    def __str__(self) -> str:
        return (
            f"machine: a Python loop of a million turns took {self.loop_ms:.0f} ms, a byte to another process and back "
            f"{self.round_trip_us:.0f} µs"
        )


def measure_pace() -> Pace:
    """Takes about a tenth of a second."""
    return Pace(loop_ms=round(_loop_ms(), 1), round_trip_us=round(_round_trip_us(), 1))


def _loop_ms() -> float:
    start, total = time.perf_counter(), 0
    for turn in range(TURNS):
        total += turn
    return 1000 * (time.perf_counter() - start)


def _round_trip_us() -> float:
    times = []
    with subprocess.Popen(
        [sys.executable, "-S", "-c", ECHO], bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as echo:
        assert echo.stdin is not None  # noqa: S101 - PIPE above
        assert echo.stdout is not None  # noqa: S101
        for _ in range(ROUND_TRIPS):
            start = time.perf_counter()
            echo.stdin.write(b"x")
            echo.stdout.read(1)
            times.append(time.perf_counter() - start)
        echo.stdin.close()
    return 1e6 * statistics.median(times)
