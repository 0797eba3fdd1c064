"""Starts, watches and stops child processes. Public: launchers and executors build on it. The parent's process.

No child outlives its parent: each holds the read end of a pipe whose write end only the parent has, and ends when
that closes. Children are plain `python -P -m tenonry.launch.child`; what they run is text on standard input.

Signals that reach a whole group of processes (a terminal's, systemd's) mean nothing to a child, whose parent got them,
too, and decides; it ends its children by STOP_SIGNAL.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping

import psutil

from tenonry.errors import LaunchError
from tenonry.messages import STOP_SIGNAL

logger = logging.getLogger(__name__)
STOP_TIMEOUT_S = 5.0
GROUP_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
# numpy starts a thread per core when it is imported, for matrices that no child of ours multiplies with it.
CHILD_DEFAULTS = {"OPENBLAS_NUM_THREADS": "1"}
ExitCallback = Callable[[str, int, int], None]


class Child:
    """A child process. `exit_code` is None while it runs, negative for a signal. `stopping`: its end is asked for.
    `parent`: the process that may ask for it, which one that this one forks is not.
    """

    def __init__(self, name: str, process: subprocess.Popen[bytes], lifeline: int) -> None:
        self.name, self.process, self.stopping = name, process, False
        self._lifeline, self.parent = lifeline, os.getpid()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def exit_code(self) -> int | None:
        return self.process.poll()

    def release(self) -> None:
        """Close the lifeline: a child that still runs ends by itself."""
        lifeline, self._lifeline = self._lifeline, -1
        if lifeline >= 0:
            os.close(lifeline)


def start_child(
    name: str,
    role: str,
    payload: Mapping[str, str],
    *,
    environment: Mapping[str, str] | None = None,
    pass_fds: Iterable[int] = (),
    removes: str = "",
) -> Child:
    """Start `role` ("module:function") in a fresh interpreter; it is called with `payload`. Raises LaunchError.

    `removes` is a folder that the child removes if it finds itself without its parent.
    """
    read_end, write_end = os.pipe()
    message = {
        "name": name,
        "role": role,
        "payload": dict(payload),
        "sys_path": [os.path.abspath(entry) for entry in sys.path],  # noqa: PTH100 - entries may be zip files or missing
        "lifeline": read_end,
        # the kernel's signal leaves no time to remove anything, and follows the thread that starts the child
        "parent": os.getpid() if threading.current_thread() is threading.main_thread() and not removes else 0,
        "removes": removes,
    }
    held = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)  # inherited, until the child ignores them
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tenonry.launch.child"],
            stdin=subprocess.PIPE,
            env={**CHILD_DEFAULTS, **os.environ, **(environment or {})},
            pass_fds=(read_end, *pass_fds),
        )
    except OSError as error:
        os.close(write_end)
        raise LaunchError(f"{name} cannot be started: {error}") from error
    finally:
        os.close(read_end)
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
    child = Child(name, process, write_end)
    assert process.stdin is not None  # noqa: S101 - PIPE above
    for tell in (lambda: process.stdin.write(json.dumps(message).encode()), process.stdin.close):
        with contextlib.suppress(BrokenPipeError):  # it died at once; whoever watches it will say so
            tell()
    return child


def stop_children(children: Iterable[Child], timeout: float = STOP_TIMEOUT_S) -> None:
    """STOP_SIGNAL, wait up to one shared deadline, then kill the process tree of each survivor. Idempotent."""
    children = [child for child in children if child.parent == os.getpid()]
    for child in children:
        child.stopping = True
    alive = [child for child in children if child.exit_code is None]
    trees = [_tree(child.pid) for child in alive]
    for child in alive:
        child.process.send_signal(STOP_SIGNAL)  # which knows of one that is gone
    deadline = time.monotonic() + timeout
    for child in alive:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.process.wait(max(0.0, deadline - time.monotonic()))
    for child, tree in zip(alive, trees, strict=True):
        if child.exit_code is None:
            logger.warning("%s (pid %d) did not stop within %.1f s; killing it", child.name, child.pid, timeout)
            kill_tree(child.pid)
            child.process.wait()
        _kill(tree)
    for child in children:
        child.release()


def kill_tree(pid: int) -> None:
    """SIGKILL to a process and all its descendants; missing ones are fine."""
    _kill(_tree(pid))


def _tree(pid: int) -> list[psutil.Process]:
    """A process, after all its descendants; nobody if it is gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        return [*root.children(recursive=True), root]
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

    def start(self, name: str, role: str, payload: Mapping[str, str], **options: object) -> Child:
        """As `start_child`; the child is watched from now on."""
        child = start_child(name, role, payload, **options)  # type: ignore[arg-type]
        self._children.append(child)
        threading.Thread(target=_watch, args=(child, self._callbacks), name=f"watch {name}", daemon=True).start()
        return child

    def on_exit(self, callback: ExitCallback) -> None:
        """Call `callback(name, pid, exit code)`, from a watcher's thread, for children that end before `stop`."""
        self._callbacks.append(callback)

    def finished(self) -> dict[str, int]:
        """Exit codes of children that ended."""
        return {child.name: child.exit_code for child in self._children if child.exit_code is not None}

    def pids(self) -> dict[str, int]:
        """Process ids of children that run."""
        return {child.name: child.pid for child in self._children if child.exit_code is None}

    def stop_some(self, names: Iterable[str], timeout: float = STOP_TIMEOUT_S) -> None:
        """Stop some children for good and forget them; no callback hears of it."""
        wanted = set(names)
        leaving = [child for child in self._children if child.name in wanted]
        for child in leaving:
            self._children.remove(child)  # in place: the finalizer holds this list
        stop_children(leaving, timeout)

    def stop(self, timeout: float = STOP_TIMEOUT_S) -> None:
        """Stop all children; see `stop_children`. Idempotent."""
        self._finalizer.detach()
        stop_children(self._children, timeout)


def _watch(child: Child, callbacks: list[ExitCallback]) -> None:
    code = child.process.wait()
    if not child.stopping:
        for callback in list(callbacks):
            callback(child.name, child.pid, code)


def describe_exit(code: int) -> str:
    """An exit code in words: "exit code 1", "signal SIGKILL"."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
