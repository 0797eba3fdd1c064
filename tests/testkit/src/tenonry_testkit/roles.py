"""Programs of the tests' children, and functions to await them. Child processes and the test process."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any


def sleep(payload: Mapping[str, str]) -> int:
    """A role for `Supervisor.start`: write its pid to the `file` of the payload, then wait for a signal."""
    write_facts(payload, {"pid": os.getpid()})
    while True:
        time.sleep(600)


def write_and_die(_payload: Mapping[str, str]) -> int:
    """A role that prints, writes to both file descriptors like a C library, and is killed within a line."""
    print("printed")
    os.write(1, b"to 1\n")
    os.write(2, b"to 2\n")
    os.write(2, b"the last")
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def write_facts(payload: Mapping[str, str], facts: Mapping[str, Any]) -> None:
    """Write facts to the `file` of the payload atomically."""
    path = Path(payload["file"])
    path.with_suffix(".tmp").write_text(json.dumps(facts), "utf-8")
    path.with_suffix(".tmp").rename(path)


def read_facts(path: Path) -> dict[str, Any]:
    """Wait for a child's facts, and return them."""
    eventually(path.exists)
    facts: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return facts


def eventually(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait until `condition()` is true; fail after `seconds`, a limit for hangs."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {condition}"
        time.sleep(0.01)


def interrupted(main: Callable[[], object], handler: Callable[[], object], number: int) -> None:
    """Run `main`; call `handler` before its line `number`, counted over all called functions, like a signal's."""
    lines = itertools.count()

    def trace(_frame: FrameType, event: str, _: Any) -> Any:
        if event == "line" and next(lines) == number:
            handler()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        main()
    finally:
        sys.settrace(before)
