"""Starts, watches and stops child processes. Public: launchers and executors build on it. The parent's process.

No child outlives its parent: each holds the read end of a pipe whose write end only the parent has, and ends when that
closes. Children are plain `python -P -m tenonry.launch.child`; what they run is text on standard input.

A child that stays stopped by a signal, or stops sending its `Heartbeat`, is killed. It is responsible for its own
children.

A child ignores signals sent to a whole process group (a terminal's, systemd's): its parent receives and handles them.
The parent ends its children by STOP_SIGNAL.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import logging
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import psutil

from tenonry.errors import LaunchError
from tenonry.launch.output import TARGETS, copy_lines
from tenonry.launch.spawn import FreshInterpreter, Process, ProcessStarter, Start

logger = logging.getLogger(__name__)
STOP_TIMEOUT_S = 5.0
STOP_SIGNAL = signal.SIGUSR1  # parent to child: finish and end; twice: end
# numpy starts a thread per core at import, for matrix products that no child of ours computes with it.
CHILD_DEFAULTS = {"OPENBLAS_NUM_THREADS": "1"}
HEARTBEAT_S = 0.5
STOPPED_S = 15.0  # stopped time after which a child is killed
FRESH = FreshInterpreter()
LAST_LINES_S = 0.2  # for the last output of a child, unless its own children hold its streams
ExitCallback = Callable[[str, int, int], None]


class Child:
    """A child process. `exit_code`: None while it runs, negative for a signal. `stopping`: its end was requested.
    `parent`: the process that may stop it, excluding forks of it. `has_begun`: reported by its heartbeat.
    """

    def __init__(self, name: str, process: Process, lifeline: int) -> None:
        self.name = name
        self.process = process
        self.stopping = False
        self.has_begun = False
        self.copiers: list[threading.Thread] = []  # of its output
        self.parent = os.getpid()
        self._lifeline = lifeline

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def exit_code(self) -> int | None:
        return self.process.poll()

    def finish_output(self) -> None:
        """Wait until the output of an ended child is copied."""
        for copier in self.copiers:
            copier.join(LAST_LINES_S)

    def release(self) -> None:
        """Close the lifeline: a running child ends by itself."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
        self._lifeline = -1


def start_child(  # noqa: PLR0913 - one argument per property of a child
    name: str,
    role: str,
    payload: Mapping[str, str],
    *,
    environment: Mapping[str, str] | None = None,
    pass_fds: Iterable[int] = (),
    owned_fds: Iterable[int] = (),
    outputs: Sequence[int] = (),
    removes: str = "",
    has_lifeline: bool = True,
    starter: ProcessStarter = FRESH,
) -> Child:
    """Start `role` ("module:function") in a child; it is called with `payload`. Raises LaunchError.

    `removes` is a folder that the child removes if its parent ends first. `has_lifeline`: a thread of the child waits
    for that end. The child inherits `pass_fds`, `owned_fds` and `outputs`, pipes that become its standard output and
    error; the latter two are closed here. A child of a `starter` that defers its start begins when it is watched.
    """
    read_end, write_end = os.pipe()
    owned = (read_end, *owned_fds, *outputs)
    # The kernel's signal leaves no time to remove a folder, and may follow the thread that starts the child.
    is_signalled = (
        not starter.follows_thread or threading.current_thread() is threading.main_thread()
    )
    message = {
        "name": name,
        "role": role,
        "payload": dict(payload),
        "sys_path": [os.path.abspath(entry) for entry in sys.path],  # noqa: PTH100 - entries may be zip files or missing
        "lifeline": read_end if has_lifeline else -1,
        "parent": os.getpid() if is_signalled and not removes else 0,
        "removes": removes,
        "outputs": outputs,
    }
    start = Start(
        json.dumps(message).encode(),
        {**CHILD_DEFAULTS, **os.environ, **(environment or {})},
        (*owned, *pass_fds),
        owned,
    )
    try:
        return Child(name, starter.start(start), write_end)
    except OSError as error:
        os.close(write_end)
        raise LaunchError(f"{name} cannot be started: {error}") from error


def stop_children(children: Iterable[Child], timeout: float = STOP_TIMEOUT_S) -> None:
    """STOP_SIGNAL, wait up to one shared deadline, then kill the process tree of each survivor. Idempotent.

    Without a timeout: kill them.
    """
    children = [child for child in children if child.parent == os.getpid()]
    for child in children:
        child.stopping = True
    alive = [child for child in children if child.exit_code is None]
    trees = [_tree(child.pid) for child in alive]
    for child in alive:
        child.process.send_signal(STOP_SIGNAL)  # no effect on an ended process
    deadline = time.monotonic() + timeout
    for child in alive:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.process.wait(max(0.0, deadline - time.monotonic()))
    for child, tree in zip(alive, trees, strict=True):
        if child.exit_code is None:
            if timeout:
                logger.warning(
                    "%s (pid %d) did not stop within %.1f s; killing it",
                    child.name,
                    child.pid,
                    timeout,
                )
            kill_tree(child.pid)
            child.process.wait()
        _kill(tree)
    for child in children:
        child.finish_output()
        child.release()


def kill_tree(pid: int) -> None:
    """Kill a process and all its descendants; ended ones are ignored."""
    _kill(_tree(pid))


def _tree(pid: int) -> list[psutil.Process]:
    """Return a process followed by its descendants, so that it never sees one of them end first; [] if it ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


class Supervisor:
    """A group of children that are stopped together: by `stop`, when it is collected, or at interpreter exit."""

    def __init__(self) -> None:
        self._children: list[Child] = []
        self._callbacks: list[ExitCallback] = []
        self._finalizer = weakref.finalize(self, stop_children, self._children)

    def start(
        self,
        name: str,
        role: str,
        payload: Mapping[str, str],
        *,
        silence_s: float = math.inf,
        silence_hint: str = "",
        prefix: Callable[[Child], str] | None = None,
        **options: Any,
    ) -> Child:
        """As `start_child`; the child is watched, and killed if it stays stopped by a signal or silent for `silence_s`
        seconds.

        It may send `Heartbeat(int(payload["heartbeat"]))`; silence counts from the first one on. In the log
        `silence_hint` follows the limit, for example the name of its setting. With `prefix`, each output line of the
        child starts with `prefix(child)`.
        """
        heartbeats, heartbeat = os.pipe()
        payload = {**payload, "heartbeat": str(heartbeat)}
        pipes = [os.pipe() for _ in TARGETS if prefix]
        outputs = [pipe for _, pipe in pipes]
        try:
            child = start_child(
                name, role, payload, owned_fds=[heartbeat], outputs=outputs, **options
            )
        except BaseException:
            for fd in (heartbeats, *(source for source, _ in pipes)):
                os.close(fd)
            raise
        if prefix:
            text = functools.partial(prefix, child)
            child.copiers = [
                copy_lines(source, target, text)
                for (source, _), target in zip(pipes, TARGETS, strict=True)
            ]
        self._children.append(child)
        watch = (child, heartbeats, silence_s, silence_hint, self._callbacks)
        threading.Thread(target=_watch, args=watch, name=f"watch {name}", daemon=True).start()
        return child

    def on_exit(self, callback: ExitCallback) -> None:
        """Call `callback(name, pid, exit code)`, from a watcher's thread, for children that end before `stop`."""
        self._callbacks.append(callback)

    def finished(self) -> dict[str, int]:
        """Exit codes of ended children."""
        return {
            child.name: child.exit_code for child in self._children if child.exit_code is not None
        }

    def pids(self) -> dict[str, int]:
        """Process ids of running children."""
        return {
            child.name: child.pid
            for child in self._children
            if child.exit_code is None and child.pid
        }

    def has_begun(self, name: str) -> bool:
        """False for a child that ended before its heartbeat reported the start of its work."""
        return all(child.has_begun for child in self._children if child.name == name)

    def rename(self, name: str, new: str) -> None:
        """Rename a child; an unknown one is ignored."""
        for child in self._children:
            if child.name == name:
                child.name = new

    def stop_some(self, names: Iterable[str], timeout: float = STOP_TIMEOUT_S) -> None:
        """Stop some children and forget them; no callback is called for them."""
        wanted = set(names)
        leaving = [child for child in self._children if child.name in wanted]
        for child in leaving:
            self._children.remove(child)  # in place: the finalizer holds this list
        stop_children(leaving, timeout)

    def stop(self, timeout: float = STOP_TIMEOUT_S) -> None:
        """Stop all children; see `stop_children`. Idempotent."""
        self._finalizer.detach()
        stop_children(self._children, timeout)


def _watch(
    child: Child, heartbeats: int, silence_s: float, hint: str, callbacks: list[ExitCallback]
) -> None:
    child.process.begin()
    with open(heartbeats, "rb", buffering=0) as pipe:
        if fault := _fault(child, pipe, silence_s, hint):
            logger.error("%s (pid %d) %s; killing it", child.name, child.pid, fault)
            kill_tree(child.pid)
    code = child.process.wait()
    child.finish_output()
    if not child.stopping:
        for callback in list(callbacks):
            callback(child.name, child.pid, code)


def _fault(child: Child, pipe: io.FileIO, limit_s: float, hint: str) -> str:
    """Wait for a reason to kill a child and return it; "" when the child ends. Before its first heartbeat, and while it
    is paused, only stopped seconds count.

    Only seconds in which this process ran count: a stopped machine does not make the child late.
    """
    poller = select.poll()
    poller.register(pipe, select.POLLIN)
    silent_s = stopped_s = 0
    is_paused = True
    while True:
        if poller.poll(1000):
            received = pipe.read(4096)
            if not received:
                return ""
            child.has_begun |= Heartbeat.BEGUN in received
            silent_s = stopped_s = 0
            is_paused = not received.endswith(Heartbeat.ALIVE)
            continue
        if child.exit_code is not None:
            return ""
        silent_s = 0 if is_paused else silent_s + 1
        stopped_s = stopped_s + 1 if _is_stopped(child.pid) else 0
        if silent_s >= limit_s:
            return f"has sent no heartbeat for {limit_s:g} s{hint}"
        if stopped_s >= STOPPED_S:
            return f"was stopped by a signal for {STOPPED_S:g} s"


def _is_stopped(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    return False


class Heartbeat:
    """A child's heartbeat to the parent, which counts the seconds of silence; without `fd` nothing is sent."""

    ALIVE = b"+"
    PAUSED = b"-"
    BEGUN = b"*" + ALIVE

    def __init__(self, fd: int = -1) -> None:
        self._fd = fd
        self._due = 0.0
        self._has_begun = False

    def send(self) -> None:
        """Send a sign of life. Costs little more than reading the clock, so a loop can call it in every iteration."""
        now = time.monotonic()
        if now >= self._due:
            self._due = now + HEARTBEAT_S
            self._write(self.ALIVE)

    def begin(self) -> None:
        """Report the start of the child's work, a possible cause of its end. A loop can call it in every iteration."""
        if not self._has_begun:
            self._has_begun = True
            self._write(self.BEGUN)

    def pause(self) -> None:
        """Permit silence until the next `send`."""
        self._due = 0.0
        self._write(self.PAUSED)

    def _write(self, state: bytes) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):  # the parent has ended, which ends this process
                os.write(self._fd, state)


def describe_exit(code: int) -> str:
    """Describe an exit code: "exit code 1", "signal SIGKILL"."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
