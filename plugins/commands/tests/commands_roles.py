"""What the children of these tests run, and how the tests wait for them. Child processes and the test process."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def sleep(payload: Mapping[str, str]) -> int:
    """Say that it runs, then wait for a signal."""
    path = Path(payload["file"])
    path.with_suffix(".tmp").write_text(json.dumps({"pid": os.getpid()}), "utf-8")
    path.with_suffix(".tmp").rename(path)
    while True:
        time.sleep(600)


def said(path: Path) -> dict[str, Any]:
    """Wait for what `sleep` says."""
    eventually(path.exists)
    facts: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return facts


def eventually(condition: Callable[[], object], seconds: float = 8.0) -> None:
    """Wait until `condition()` is true; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {condition}"
        time.sleep(0.01)
