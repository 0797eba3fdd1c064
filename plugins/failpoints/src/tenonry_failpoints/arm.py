"""Sets the faults of a process: wraps the methods of the borders that are named, and those alone. Any process.

Nothing is unwrapped again. A fork of an armed process arms itself anew, so that it counts for itself.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import pkgutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tenonry.errors import ConfigError
from tenonry.interfaces.plugin import Plugin
from tenonry.launch import supervise
from tenonry_failpoints import VARIABLE
from tenonry_failpoints.borders import BORDERS, Border
from tenonry_failpoints.faults import Fault, parse

logger = logging.getLogger("tenonry.failpoints")
SHARED_VARIABLE = f"{VARIABLE}_SHARED"
RECORD_BYTES = 32  # of a counter: the name of a process and a line break
CHILD_ROLE = "tenonry_failpoints.arm:run_child"
ROLE = "failpoints_role"  # in the payload of a child
PROCESS = "failpoints_process"
MARK = "_tenonry_border"  # an attribute of what was wrapped


class Armed:
    """The faults of this process, by point. `shared`: a folder of counters, one for each fault in all processes."""

    def __init__(self, faults: Sequence[Fault], process: str, shared: Path | None) -> None:
        self.process = process
        self._faults: defaultdict[str, list[tuple[Iterator[int], Fault]]] = defaultdict(list)
        for place, fault in enumerate(faults):
            if fault.process in {"", process}:
                counter = itertools.count(1)
                if shared is not None:
                    counter = count_together(shared / f"{place} {fault.name}", process)
                self._faults[fault.name].append((counter, fault))

    def reach(self, name: str) -> None:
        """This process is at a point, on any thread."""
        for counter, fault in self._faults.get(name, ()):
            time = next(counter)
            if time == (fault.hit or 1):  # a fault of each time would fill the log
                logger.warning("failpoint %s in %s, time %d", fault.text, self.process, time)
            if fault.hit in {0, time}:
                fault.happen()


def count_together(file: Path, process: str) -> Iterator[int]:
    """Number of times that all processes have reached a point, this one included: its records in a file."""
    record = process.encode()[: RECORD_BYTES - 1].ljust(RECORD_BYTES - 1) + b"\n"
    while True:
        with file.open("ab", buffering=0) as counter:
            counter.write(record)  # appended as a whole, whichever processes do the same
            time = counter.tell() // RECORD_BYTES
        yield time


_armed = Armed((), "", None)


def arm(process: str) -> None:
    """Arm the faults of the environment. Raises ConfigError."""
    global _armed  # noqa: PLW0603 - one for the process, as what it wraps
    faults = parse(os.environ.get(VARIABLE, ""))
    _armed = Armed(faults, process, _folder())
    set_names = {fault.name for fault in faults}
    borders = [border for border in BORDERS if {border.before, border.after} & set_names]
    for border in borders:
        if not border.of_plugins:
            wrap(pkgutil.resolve_name(border.owner), border)
    _wrap_plugins([border for border in borders if border.of_plugins])
    _wrap_children()


def _folder() -> Path | None:
    text = os.environ.get(SHARED_VARIABLE)
    if not text:
        return None
    folder = Path(text)
    if not folder.is_dir():
        raise ConfigError(f"{SHARED_VARIABLE}={text}: there is no such folder; make it first")
    return folder


def wrap(owner: type, border: Border) -> None:
    """Inject the faults that are armed now around a method of a class, in place of those armed before a fork."""
    armed = _armed
    method = getattr(owner, border.method)
    if getattr(method, MARK, None) is armed:
        return
    plain = _unwrapped(method)

    @functools.wraps(plain)
    def reached(*args: Any, **kwargs: Any) -> Any:
        armed.reach(border.before)
        result = plain(*args, **kwargs)
        armed.reach(border.after)
        return result

    setattr(reached, MARK, armed)
    setattr(owner, border.method, reached)


def _unwrapped(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method below an injection, which a fork may have from its parent process."""
    plain: Callable[..., Any] = (
        getattr(method, "__wrapped__", method) if hasattr(method, MARK) else method
    )
    return plain


def _wrap_plugins(borders: Sequence[Border]) -> None:
    """Their classes are known when the first instance is made."""
    kinds = [(pkgutil.resolve_name(border.owner), border) for border in borders]
    plain: Callable[..., None] = _unwrapped(Plugin.__init__)

    @functools.wraps(plain)
    def made(self: Plugin[Any], *args: Any, **kwargs: Any) -> None:
        for kind, border in kinds:
            if isinstance(self, kind):
                wrap(type(self), border)
        plain(self, *args, **kwargs)

    setattr(made, MARK, _armed)
    Plugin.__init__ = made  # type: ignore[method-assign]


# ------------------------------------------------------------------------------------------------------------ children
def _wrap_children() -> None:
    """Processes that start from here arm themselves first."""
    plain = supervise.start_child
    if hasattr(plain, MARK):
        return

    @functools.wraps(plain)
    def start(name: str, role: str, payload: Any, **options: Any) -> supervise.Child:
        return plain(name, CHILD_ROLE, {**payload, ROLE: role, PROCESS: name}, **options)

    setattr(start, MARK, "")
    supervise.start_child = start


def run_child(payload: dict[str, str]) -> int:
    """The role of a child of an armed process: its own role, after it is armed."""
    arm(payload.pop(PROCESS))
    role = pkgutil.resolve_name(payload.pop(ROLE))
    return int(role(payload))
