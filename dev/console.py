"""Messages for the person at the terminal; standard output belongs to the program that runs."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import NoReturn

PRINTING = threading.Lock()


def say(text: str, end: str = "\n") -> None:
    """Print for the person at the terminal; standard output belongs to the program that is run."""
    print(f"dev.py: {text}", end=end, file=sys.stderr, flush=True)


def stop(text: str) -> NoReturn:
    """End with a message and exit status 1."""
    sys.exit(f"dev.py: {text}")


@contextlib.contextmanager
def phase(text: str) -> Iterator[None]:
    """Print one line: what is being done, and, once it is done, how long it took."""
    say(f"{text} … ", end="")
    start = time.monotonic()
    result = "failed after "
    try:
        yield
        result = ""
    finally:
        print(f"{result}{time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)


def outcome(status: int) -> str:
    """Return the word for an exit status."""
    return "ok" if status == 0 else f"FAILED ({status})"


def summary(what: str, results: dict[str, int]) -> int:
    """Say how each part ended; return the exit status of the whole."""
    say(f"{what}: " + ", ".join(f"{name} {outcome(status)}" for name, status in results.items()))
    return int(any(results.values()))
