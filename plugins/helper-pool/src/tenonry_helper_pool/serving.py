"""Main loop of a helper process: it builds the handler, is forked for each worker, or is a worker itself. Helper
process.

If it can be forked, it never works on a job, so it always detects the end of its owner, and its forks end with it. A
worker ends by its own alarm when a job takes too much processor time, and its additional memory is bounded.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import pkgutil
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec
from setproctitle import getproctitle, setproctitle

from tenonry_helper_pool.background import Background, lower
from tenonry_helper_pool.frames import Ended, receive, send
from tenonry_helper_pool.handler import Handler, HandlerError
from tenonry_helper_pool.messages import FORK, FORKED, NO_FORK, Limits, Ready

logger = logging.getLogger("tenonry.helpers")
START_NICE = 10  # about a tenth of a busy processor: imports are not what a client waits for
OWNER_POLL_S = 0.05
THREADS_END_S = 1.0
PR_SET_PDEATHSIG = 1


def serve(payload: Mapping[str, str]) -> int:
    """Serve until the owner exits. `payload`: channel (a file descriptor), handler ("module:Class"), limits."""
    os.dup2(2, 1)  # a library that prints does not write to what the owner prints
    limits = msgspec.json.decode(payload["limits"], type=Limits)
    with socket.socket(fileno=int(payload["channel"])) as channel, contextlib.suppress(Ended):
        handler = _built(payload["handler"], channel)
        if handler is None:
            return 1
        if _can_fork():
            gc.freeze()
            send(channel, msgspec.msgpack.encode(Ready(facts=handler.facts(), can_fork=True)))
            forked = _forked(channel)
            if forked is None:
                return 0
            _work(handler, forked, limits)
        else:
            send(channel, msgspec.msgpack.encode(Ready(facts=handler.facts())))
            _work(handler, channel, limits)
    return 0


def _built(target: str, channel: socket.socket) -> Handler | None:
    """The handler, built at a low priority; None if that failed, which was reported to the owner."""
    setup = bytes(receive(channel))
    found: list[Handler | str] = []
    thread = threading.Thread(target=_build, args=(target, setup, found), name="helper-build")
    thread.start()
    while thread.is_alive():
        readable, _, _ = select.select([channel], [], [], OWNER_POLL_S)
        if readable:  # nothing is sent before the answer: the owner has gone
            os._exit(1)
    (handler,) = found
    if isinstance(handler, str):
        send(channel, msgspec.msgpack.encode(Ready(error=handler)))
        return None
    return handler


def _build(target: str, setup: bytes, found: list[Handler | str]) -> None:
    lower(threading.get_native_id(), START_NICE)
    try:
        found.append(pkgutil.resolve_name(target)(setup))
    except HandlerError as error:
        found.append(str(error))
    except Exception as error:
        logger.exception("a helper could not be built")
        found.append(f"{type(error).__name__}: {error}")


def _can_fork() -> bool:
    """Return True if a fork of this process is equivalent: one thread, on a Linux with process descriptors."""
    if sys.platform != "linux":
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    deadline = time.monotonic() + THREADS_END_S
    while len(list(Path("/proc/self/task").iterdir())) > 1:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)  # the thread that built is on its way out
    return True


def _forked(channel: socket.socket) -> socket.socket | None:
    """Fork for each request of the owner; the channel of the worker in a fork, None once the owner has gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks are not awaited
    own = os.getpid()
    while True:
        try:
            request, fds, _, _ = socket.recv_fds(channel, len(FORK), 1)
        except OSError:
            return None
        if not request:
            return None
        try:
            pid = os.fork()
        except OSError:
            channel.send(NO_FORK)
            os.close(fds[0])
            continue
        if pid == 0:
            channel.close()
            _end_with(own)
            return socket.socket(fileno=fds[0])
        os.close(fds[0])
        _answer(channel, pid)


def _answer(channel: socket.socket, pid: int) -> None:
    """Send the descriptor by which the owner can end the fork."""
    with contextlib.suppress(OSError):
        descriptor = os.pidfd_open(pid)
        socket.send_fds(channel, [FORKED.pack(pid)], [descriptor])
        os.close(descriptor)


def _end_with(parent: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _work(handler: Handler, channel: socket.socket, limits: Limits) -> None:
    """Answer jobs, one at a time, until the owner closes the channel."""
    setproctitle(f"{getproctitle()} worker")
    with contextlib.suppress(ValueError, OSError):
        most = _data_bytes() + limits.memory_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    apart = Background("helper-job", limits.stack_bytes, limits.nice)
    try:
        while True:
            body = receive(channel)
            signal.setitimer(signal.ITIMER_PROF, limits.seconds)
            parts = apart.run(partial(handler.work, body))
            signal.setitimer(signal.ITIMER_PROF, 0)
            send(channel, *parts)
    except Ended:
        os._exit(0)  # as a fork it has nothing to finish
    except BaseException:
        logger.exception("a job failed in '%s'", type(handler).__name__)
        os._exit(1)


def _data_bytes() -> int:
    """Private memory that this process has now."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("VmData:"):
            return 1024 * int(line.split()[1])
    return 0
