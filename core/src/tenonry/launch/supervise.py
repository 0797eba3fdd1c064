"""Starts, watches and stops child processes. Public: launchers and executors build on it. The parent's process.

No child outlives its parent: each holds the read end of a pipe whose write end only the parent has, and ends when
that closes. Children are plain `python -P -m tenonry.launch.child`; what they run is text on standard input.

A child that can hang is given a time limit for its silence and tells with a `Pulse` that it lives.

Signals that reach a whole group of processes (a terminal's, systemd's) mean nothing to a child, whose parent got them,
too, and decides; it ends its children by STOP_SIGNAL.
"""

from __future__ import annotations

import contextlib
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
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import psutil

from tenonry.errors import LaunchError

logger = logging.getLogger(__name__)
STOP_TIMEOUT_S = 5.0
STOP_SIGNAL = signal.SIGUSR1  # parent to child: finish and end; twice: end
GROUP_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
# numpy starts a thread per core when it is imported, for matrices that no child of ours multiplies with it.
CHILD_DEFAULTS = {"OPENBLAS_NUM_THREADS": "1"}
BEAT_S = 0.5
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
        "parent": os.getpid()
        if threading.current_thread() is threading.main_thread() and not removes
        else 0,
        "removes": removes,
    }
    held = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(
            signal.SIG_BLOCK, GROUP_SIGNALS
        )  # inherited, until the child ignores them
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
        with contextlib.suppress(
            BrokenPipeError
        ):  # it died at once; whoever watches it will say so
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
            logger.warning(
                "%s (pid %d) did not stop within %.1f s; killing it", child.name, child.pid, timeout
            )
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

    def start(
        self,
        name: str,
        role: str,
        payload: Mapping[str, str],
        *,
        silence_s: float = math.inf,
        **options: Any,
    ) -> Child:
        """As `start_child`; the child is watched from now on, and killed if it is silent for `silence_s` seconds.

        It says that it lives with `Pulse(int(payload["pulse"]))`; nobody counts before it has done so once.
        """
        signs, pulse = os.pipe()
        if silence_s < math.inf:
            payload, options["pass_fds"] = (
                {**payload, "pulse": str(pulse)},
                (*options.get("pass_fds", ()), pulse),
            )
        try:
            child = start_child(name, role, payload, **options)
        except BaseException:
            os.close(signs)
            raise
        finally:
            os.close(pulse)
        self._children.append(child)
        watch = (child, signs, silence_s, self._callbacks)
        threading.Thread(target=_watch, args=watch, name=f"watch {name}", daemon=True).start()
        return child

    def on_exit(self, callback: ExitCallback) -> None:
        """Call `callback(name, pid, exit code)`, from a watcher's thread, for children that end before `stop`."""
        self._callbacks.append(callback)

    def finished(self) -> dict[str, int]:
        """Exit codes of children that ended."""
        return {
            child.name: child.exit_code for child in self._children if child.exit_code is not None
        }

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


def _watch(child: Child, signs: int, silence_s: float, callbacks: list[ExitCallback]) -> None:
    with open(signs, "rb", buffering=0) as pipe:
        if _falls_silent(child, pipe, silence_s):
            logger.error(
                "%s (pid %d) has given no sign of life for %g s (--step-timeout); killing it",
                child.name, child.pid, silence_s,
            )  # fmt: skip
            kill_tree(child.pid)
    code = child.process.wait()
    if not child.stopping:
        for callback in list(callbacks):
            callback(child.name, child.pid, code)


def _falls_silent(child: Child, pipe: io.FileIO, limit_s: float) -> bool:
    """True once a child that lives has been silent for too long; False when it ends, or can be silent for ever."""
    poller, silent_s = select.poll(), -math.inf
    poller.register(pipe, select.POLLIN)
    while limit_s < math.inf and child.exit_code is None:
        if poller.poll(1000):
            sign = pipe.read(4096)
            if not sign:
                break
            silent_s = 0.0 if sign.endswith(Pulse.BEAT) else -math.inf
        else:
            silent_s += (
                1  # of seconds in which we ran ourselves: whoever stops us both may take long
            )
            if silent_s >= limit_s:
                return True
    return False


class Pulse:
    """A child's signs of life, for the parent that counts the seconds of its silence; without `fd` nobody does."""

    BEAT, PAUSE = b"+", b"-"

    def __init__(self, fd: int = -1) -> None:
        self._fd, self._due = fd, 0.0

    def beat(self) -> None:
        """I live. Costs little more than a look at the clock, so a loop can say it in every turn."""
        now = time.monotonic()
        if now >= self._due:
            self._due = now + BEAT_S
            self._tell(self.BEAT)

    def pause(self) -> None:
        """From now on I may be silent, until the next `beat`."""
        self._due = 0.0
        self._tell(self.PAUSE)

    def _tell(self, sign: bytes) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):  # the parent has ended; so shall we
                os.write(self._fd, sign)


def describe_exit(code: int) -> str:
    """An exit code in words: "exit code 1", "signal SIGKILL"."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
