"""The process that is forked for each engine: it has one thread, and imported modules only. See `forks`.

A fork receives the same as a fresh interpreter: environment, folder, open files, and a message on standard input, from
which `tenonry.launch.child` continues. Where its owner wants that, it first forks a fork server for its own children:
the ranks of an engine.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import json
import logging
import os
import pkgutil
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tenonry.launch import child
from tenonry_launcher_fork.forks import READY, ForkedProcess, ForkServer, ReadyForkServer

logger = logging.getLogger("tenonry.launch")
REQUEST_BYTES = 1 << 18
MAX_FDS = 32
NUM_STANDARD = 3
FILES = Path("/proc/self/fd")
NO_FORK = b"-"  # the answer where there is no process id to give
_own_server: ForkServer | None = None


def serve(payload: Mapping[str, str]) -> int:
    """Import, then fork for each request; returns the exit status, in a fork that of the role that it was given.

    `payload`: channel (a file descriptor), imports ("module:function", which is called with `argument`).
    """
    with socket.socket(fileno=int(payload["channel"])) as channel:
        known = _open_files()
        try:
            pkgutil.resolve_name(payload["imports"])(payload["argument"])
        except Exception:  # the engine will fail as well, and report it
            logger.debug("imports failed", exc_info=True)
        if reason := _why_not(known):
            logger.warning("starting engines in fresh interpreters: %s", reason)
            return 0
        gc.freeze()
        _send(channel, READY)
        if not _serve(channel):
            return 0
    return child.main()


def own_server() -> ForkServer | None:
    """Return the fork server of this process, for its children."""
    return _own_server


def _serve(channel: socket.socket) -> bool:
    """Fork for each request, until the owner has ended: False. True in a fork that is to run a role."""
    while True:
        request, fds = _next_request(channel)
        if not request:
            return False
        if _fork(channel, json.loads(request), fds):
            return True
        for fd in fds:
            os.close(fd)


def _next_request(channel: socket.socket) -> tuple[bytes, list[int]]:
    """Empty once the owner has closed the channel, whatever it left unread."""
    try:
        request, fds, _, _ = socket.recv_fds(channel, REQUEST_BYTES, MAX_FDS)
    except ConnectionResetError:
        return b"", []
    return request, fds


def _send(channel: socket.socket, answer: bytes) -> None:
    """Send an answer to the owner, if it is still running."""
    with contextlib.suppress(BrokenPipeError):
        channel.send(answer)


def _open_files() -> set[str]:
    return {entry.name for entry in FILES.iterdir() if entry.exists()}


def _why_not(known: set[str]) -> str:
    """Reason why a fork of this process would differ from a fresh one; empty if it would not."""
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        return "what was imported has started threads"
    if opened := _open_files() - known:
        paths = sorted(str(FILES / name) for name in opened)
        return f"what was imported has opened {', '.join(map(os.readlink, paths))}"
    return ""


def _fork(channel: socket.socket, request: dict[str, Any], fds: list[int]) -> bool:
    """True in the fork that is to run a role."""
    between = os.fork()
    if between:
        if os.waitpid(between, 0)[1]:
            _send(channel, NO_FORK)
        return False
    between = os.getpid()
    try:
        is_between = os.fork() > 0
    except OSError:
        os._exit(1)
    if is_between:
        os._exit(0)  # hands the other on
    while os.getppid() == between:
        time.sleep(0.0005)
    if os.getppid() != request["parent"]:
        _send(channel, NO_FORK)
        os._exit(child.EXIT_PARENT_DIED)
    _send(channel, str(os.getpid()).encode())
    channel.close()
    _take(fds, [0, 1, 2, *request["numbers"]])
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    if request["has_own_server"]:
        _leave_server()
    return True


def _leave_server() -> None:
    """Fork a server for the children of this process. Returns in this process, and in each fork of the server."""
    global _own_server  # noqa: PLW0603 - of the process, which runs its role only after this
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid:
        theirs.close()
        _own_server = ReadyForkServer(ForkedProcess(pid), ours)
        return
    ctypes.CDLL(None).prctl(child.PR_SET_PDEATHSIG, signal.SIGKILL)  # even if it is stopped
    ours.close()
    null = os.open(os.devnull, os.O_RDONLY)
    _take([null, 1, 2, theirs.detach()], [0, 1, 2, NUM_STANDARD])
    with socket.socket(fileno=NUM_STANDARD) as channel:
        if not _serve(channel):
            os._exit(0)


def _take(fds: list[int], numbers: list[int]) -> None:
    """Have these open files under these numbers, and no others."""
    first = max(*fds, *numbers) + 1
    kept = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, first) for fd in fds]
    os.closerange(NUM_STANDARD, kept[0])
    for fd, number in zip(kept, numbers, strict=True):
        os.dup2(fd, number)
        os.close(fd)
