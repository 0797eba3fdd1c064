"""Order and end of a round of `tenonry plugins dev`: failed tests first, then those not run for longest.

A record of earlier runs decides the order, so that rules for which there was no time come first in the next run. Test
process.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec

EXIT_S = 0.2  # of the test process, after its last test


class Ran(msgspec.Struct):
    """Last run of one test: its number, the first line of its failure, and its seconds."""

    number: int
    failure: str = ""
    took_s: float = 0.0


class Record(msgspec.Struct):
    """All runs so far; `left`: tests without time in the last one."""

    number: int = 0
    left: int = 0
    tests: dict[str, Ran] = {}

    def failures(self) -> list[tuple[str, str]]:
        """Names and messages of the tests that failed in the last run."""
        return [
            (name, ran.failure)
            for name, ran in self.tests.items()
            if ran.failure and ran.number == self.number
        ]

    def num_held(self) -> int:
        """Tests that passed in the last run."""
        return sum(ran.number == self.number and not ran.failure for ran in self.tests.values())


def read_record(file: Path) -> Record:
    """The record in a file; an empty one if there is none."""
    return msgspec.json.decode(file.read_bytes(), type=Record) if file.exists() else Record()


class Budget:
    """Orders and bounds one session."""

    def __init__(self, file: Path, deadline: float) -> None:
        self._file = file
        self._deadline = deadline
        self._has_run = False
        self._record = read_record(file)
        self._record.number += 1
        self._record.left = 0

    def _order(self, item: Any) -> tuple[bool, int]:
        ran = self._record.tests.get(item.nodeid, Ran(0))
        return not ran.failure, ran.number

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items.sort(key=self._order)

    def pytest_runtest_protocol(self, item: Any) -> bool | None:
        """Leave a test out that would not end in time; one is always run. Registered last, it is called first.

        A long one is the oldest by the next run, and thus the first.
        """
        took_s = self._record.tests.get(item.nodeid, Ran(0)).took_s
        if time.monotonic() + took_s + EXIT_S < self._deadline or not self._has_run:
            self._has_run = True
            return None
        self._record.left += 1
        return True

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.failed:
            lines = report.longreprtext.splitlines() if report.failed else []
            messages = [line[1:].strip() for line in lines if line.startswith("E ")]
            failure = (messages or lines or [""])[0][:200] or ("failed" if report.failed else "")
            self._record.tests[report.nodeid] = Ran(self._record.number, failure, report.duration)

    def pytest_sessionfinish(self) -> None:
        self._file.write_bytes(msgspec.json.encode(self._record))
