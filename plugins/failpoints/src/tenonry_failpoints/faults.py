"""Reads `TENONRY_FAILPOINTS`: faults as text, separated by semicolons. Any process.

A fault is `NAME[PROCESS]=ACTION:ARGUMENT@N`. `[PROCESS]` limits it to the process of this name, such as `engine 0` or
`front end`. With `@N` it happens at the N-th time that a process comes to the point, otherwise each time. Actions:
`kill` (SIGKILL), `stop` (SIGSTOP), `exit:STATUS` (1), `raise:EXCEPTION` (RuntimeError; any that is built in or of
`tenonry.errors`), `sleep:SECONDS`.
"""

from __future__ import annotations

import builtins
import difflib
import math
import os
import re
import signal
import time
from collections.abc import Callable
from typing import NamedTuple

from tenonry import errors
from tenonry.errors import ConfigError
from tenonry_failpoints import VARIABLE
from tenonry_failpoints.borders import names

FORM = "NAME[PROCESS]=ACTION:ARGUMENT@N"
PATTERN = re.compile(
    r"(?P<name>[\w.]+)(\[(?P<process>[^]]+)\])?\s*=\s*(?P<action>\w+)(:(?P<argument>[^@]*))?(@(?P<hit>\d+))?"
)
MAX_STATUS = 255


class Fault(NamedTuple):
    """One fault. `process`: only there, "" for any. `hit`: number of the hit, 0 for each. `text`: as written by the
    user.
    """

    name: str
    process: str
    hit: int
    happen: Callable[[], None]
    text: str


def parse(text: str) -> list[Fault]:
    """The faults of a text. Raises ConfigError for the first that cannot be."""
    written = [part.strip() for part in text.split(";")]
    return [_fault(part) for part in written if part]


def _fault(text: str) -> Fault:
    match = PATTERN.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"{VARIABLE}: '{text}' is no fault; write {FORM}, such as engine.before_execute=kill@7"
        )
    name = match["name"]
    known = list(names())
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ConfigError(
            f"{VARIABLE}: there is no failpoint '{name}'{hint}; there are {', '.join(known)}"
        )
    if match["hit"] is not None and not int(match["hit"]):
        raise ConfigError(f"{VARIABLE}: '{text}': the first time is @1")
    make = ACTIONS.get(match["action"])
    if make is None:
        raise ConfigError(
            f"{VARIABLE}: '{text}': there is no action '{match['action']}'; there are {', '.join(ACTIONS)}"
        )
    happen = make(text, (match["argument"] or "").strip())
    return Fault(name, match["process"] or "", int(match["hit"] or 0), happen, text)


# ------------------------------------------------------------------------------------------------------------- actions
def _kill(text: str, argument: str) -> Callable[[], None]:
    _expect_nothing(text, argument)
    return lambda: os.kill(os.getpid(), signal.SIGKILL)


def _stop(text: str, argument: str) -> Callable[[], None]:
    _expect_nothing(text, argument)
    return lambda: os.kill(os.getpid(), signal.SIGSTOP)


def _expect_nothing(text: str, argument: str) -> None:
    if argument:
        raise ConfigError(f"{VARIABLE}: '{text}': kill and stop take nothing behind a colon")


def _exit(text: str, argument: str) -> Callable[[], None]:
    status = int(argument or 1) if not argument or argument.isdecimal() else -1
    if not 0 <= status <= MAX_STATUS:
        raise ConfigError(
            f"{VARIABLE}: '{text}': an exit status is a number from 0 to {MAX_STATUS}"
        )
    return lambda: os._exit(status)


def _sleep(text: str, argument: str) -> Callable[[], None]:
    try:
        seconds = float(argument)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise ConfigError(
            f"{VARIABLE}: '{text}': give seconds to sleep, such as sleep:0.5, not '{argument}'"
        )
    return lambda: time.sleep(seconds)


def _raise(text: str, argument: str) -> Callable[[], None]:
    name = argument or RuntimeError.__name__
    found = getattr(builtins, name, None) or getattr(errors, name, None)
    made = f"a failpoint was set: {text}"
    try:
        is_exception = isinstance(found, type) and issubclass(found, Exception)
        error = found(made) if is_exception and found is not None else None
    except TypeError:  # it requires more than a text
        error = None
    if error is None:
        raise ConfigError(
            f"{VARIABLE}: '{text}': '{name}' is no exception that is built in or of tenonry.errors and made of a text"
        )
    kind = type(error)

    def happen() -> None:
        raise kind(made)

    return happen


ACTIONS = {"kill": _kill, "stop": _stop, "exit": _exit, "raise": _raise, "sleep": _sleep}
