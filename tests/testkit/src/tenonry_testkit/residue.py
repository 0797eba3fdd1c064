"""Detects leftovers of a test: processes, threads, listening sockets, shared memory, run folders. Test process.

On Linux everything is read from /proc; elsewhere only processes and threads are detected.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

RUN_VARIABLE = "PYTEST_TENONRY_RUN"  # inherited by all processes of a test, even orphans
PROC = Path("/proc")
SHARED_MEMORY = Path("/dev/shm")
RUN_DIRECTORIES = "tenonry-"
HELPERS = (
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
)  # they run as long as the interpreter
GRACE_S = 5.0


@dataclass(frozen=True, order=True)
class Thing:
    """One resource: its kind, the key that identifies it, and a description, which may change."""

    kind: str
    key: Any
    text: str = field(compare=False)


def mark_descendants() -> None:
    """Mark all later descendants of this process by an environment variable."""
    os.environ[RUN_VARIABLE] = uuid.uuid4().hex


class ResidueWatch:
    """Records existing resources before a test, and lists new ones that still exist. One per test process."""

    def __init__(self) -> None:
        self._foreign_pids: set[int] = set()
        self._allowed: dict[object, set[Thing]] = {None: set(self.now())}

    # ------------------------------------------------------------------ what may remain
    def now(self) -> set[Thing]:
        """List all resources of this process and its descendants."""
        return {
            *self._processes(),
            *_threads(),
            *_listening(),
            *_shared_memory(),
            *_run_directories(),
        }

    def allow(self, owner: object, things: Iterable[Thing]) -> None:
        """Permit `things` until `disallow(owner)`; with None as owner, permanently."""
        self._allowed.setdefault(owner, set()).update(things)

    def disallow(self, owner: object) -> None:
        """Stop permitting the resources of `owner`, which has ended."""
        self._allowed.pop(owner, None)

    def leftovers(self, grace_s: float = GRACE_S) -> list[Thing]:
        """List unpermitted resources that still exist after `grace_s` seconds at most."""
        deadline = time.monotonic() + grace_s
        pause = 0.005
        while True:
            left = self._left()
            if not left or time.monotonic() >= deadline:
                break
            if pause == 0.005:  # the first time: objects in reference cycles close when collected
                import gc

                gc.collect()
            time.sleep(pause)
            pause = min(0.1, 2 * pause)
        return sorted(left)

    def forgive(self, things: Iterable[Thing]) -> None:
        """Kill the processes among them and remove the files, so that the next test starts clean; permit the rest."""
        for thing in things:
            if thing.kind == "process":
                with contextlib.suppress(psutil.NoSuchProcess):
                    psutil.Process(thing.key).kill()
            elif thing.kind == "shared memory":
                Path(str(thing.key)).unlink(missing_ok=True)
        self.allow(None, things)

    def _left(self) -> set[Thing]:
        allowed = set().union(*self._allowed.values())
        left = {thing for thing in self.now() - allowed if not _descends_from(thing, allowed)}
        foreign = {thing for thing in left if self._is_foreign(thing)}
        self.allow(None, foreign)
        return left - foreign

    def _is_foreign(self, thing: Thing) -> bool:
        """Return True if a process outside this test run made the resource or uses it; the machine is shared."""
        if thing.kind == "shared memory":
            return _used_by_others(
                lambda pid: str(thing.key) in _read(pid, "maps"), self._own_pids()
            )
        if thing.kind == "run folder":
            own = self._own_pids()
            inodes = _bound_inodes(str(thing.key))
            maker = _maker_of(str(thing.key))
            return (maker not in own and psutil.pid_exists(maker)) or (
                bool(inodes)
                and _used_by_others(lambda pid: bool(inodes & _socket_inodes(pid)), own)
            )
        return False

    # ------------------------------------------------------------------ processes
    def _own_pids(self) -> set[int]:
        return {os.getpid()} | {thing.key for thing in self._processes()}

    def _processes(self) -> list[Thing]:
        if not PROC.is_dir():
            return [
                _process(child.pid, " ".join(child.cmdline()))
                for child in psutil.Process().children(recursive=True)
            ]
        pids = set(_pids())
        self._foreign_pids &= pids
        parents = {pid: _parent(pid) for pid in pids - self._foreign_pids}
        own = {
            pid
            for pid in parents
            if pid != os.getpid() and _is_ours(pid, parents) and not _is_gone(pid)
        }
        self._foreign_pids |= pids - own - {os.getpid()}
        lines = {pid: _read(pid, "cmdline").replace("\0", " ").strip() for pid in own}
        return [
            _process(pid, line)
            for pid, line in lines.items()
            if not any(helper in line for helper in HELPERS)
        ]


def _process(pid: int, command: str) -> Thing:
    return Thing("process", pid, f"process {pid}: {command[:160]}")


def _pids() -> list[int]:
    return [int(name) for name in os.listdir(PROC) if name.isdigit()]  # noqa: PTH208 - faster; runs after each test


def _read(pid: int, name: str) -> str:
    try:
        return (PROC / str(pid) / name).read_text("utf-8", "replace")
    except OSError:
        return ""


def _stat(pid: int) -> list[str]:
    """State, parent and more; empty for a missing process."""
    return _read(pid, "stat").rpartition(")")[2].split()


def _parent(pid: int) -> int:
    stat = _stat(pid)
    return int(stat[1]) if stat else 0


def _is_gone(pid: int) -> bool:
    """Return True if a process has ended, zombies included.

    A zombie has no command line, but a process that is starting has none either, so the state decides.
    """
    return _stat(pid)[:1] in ([], ["Z"], ["X"])


def _is_ours(pid: int, parents: dict[int, int]) -> bool:
    """Return True if a process descends from this one, or is an orphan with its mark."""
    ancestor = parents.get(pid, 0)
    while ancestor:
        if ancestor == os.getpid():
            return True
        ancestor = parents.get(ancestor, 0)
    mark = os.environ.get(RUN_VARIABLE)
    return mark is not None and f"{RUN_VARIABLE}={mark}" in _read(pid, "environ")


def _descends_from(thing: Thing, allowed: set[Thing]) -> bool:
    """Return True for a descendant of a permitted process, such as the worker of a shared server."""
    if thing.kind != "process":
        return False
    roots = {other.key for other in allowed if other.kind == "process"}
    pid: int = thing.key
    while pid > 1:
        if pid in roots:
            return True
        pid = _parent(pid)
    return False


def _used_by_others(uses: Callable[[int], bool], own: set[int]) -> bool:
    return any(uses(pid) for pid in _pids() if pid not in own)


# ------------------------------------------------------------------------------------------------------ other things
def _threads() -> list[Thing]:
    """Threads that keep the interpreter from ending."""
    return [
        Thing("thread", thread.ident, f"thread {thread.name!r}, which is no daemon")
        for thread in threading.enumerate()
        if not thread.daemon and thread is not threading.main_thread()
    ]


def _listening() -> list[Thing]:
    found = []
    for number, inode in _sockets_of_this_process():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as copy:
            if copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                found.append(
                    Thing("socket", inode, f"a socket that listens on {copy.getsockname()!r}")
                )
    return found


def _sockets_of_this_process() -> list[tuple[int, str]]:
    return [
        (number, target) for number, target in _open_files("self") if target.startswith("socket:")
    ]


def _open_files(pid: int | str) -> list[tuple[int, str]]:
    """(file descriptor, target of its link) of a process; empty if they cannot be read."""
    folder = f"{PROC}/{pid}/fd"
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208 - as in `_pids`
            with contextlib.suppress(OSError):
                found.append((int(name), os.readlink(f"{folder}/{name}")))  # noqa: PTH115
    return found


def _shared_memory() -> list[Thing]:
    if not SHARED_MEMORY.is_dir():
        return []
    return [
        Thing("shared memory", str(path), f"shared memory segment {path.name}")
        for path in SHARED_MEMORY.iterdir()
    ]


def _run_directories() -> list[Thing]:
    folder = tempfile.gettempdir()
    with contextlib.suppress(OSError):  # closed by the test
        return [
            Thing("run folder", f"{folder}/{name}", f"run folder {folder}/{name}")
            for name in os.listdir(folder)  # noqa: PTH208 - as in `_pids`
            if name.startswith(RUN_DIRECTORIES)
        ]
    return []


def _maker_of(folder: str) -> int:
    """Process id of a run folder's maker, from its name; 0 without one."""
    number = Path(folder).name.split("-")[1]
    return int(number) if number.isdigit() else 0


def _bound_inodes(folder: str) -> set[str]:
    """Inodes of sockets bound to files in the folder."""
    with contextlib.suppress(OSError):
        lines = (PROC / "net" / "unix").read_text("utf-8", "replace").splitlines()
        return {f"socket:[{line.split()[6]}]" for line in lines if f" {folder}/" in line}
    return set()


def _socket_inodes(pid: int) -> set[str]:
    return {target for _, target in _open_files(pid)}
