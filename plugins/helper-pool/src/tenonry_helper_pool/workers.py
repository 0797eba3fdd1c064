"""The processes of a pool: one that built the handler, and workers that are forks of it. Front end; any thread."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import msgspec

from tenonry.launch.supervise import start_child
from tenonry_helper_pool.background import FIRST_NICE, Background
from tenonry_helper_pool.frames import Ended, TooLate, is_readable, receive, send
from tenonry_helper_pool.messages import FORK, FORKED, Limits, Ready

SERVE = "tenonry_helper_pool.serving:serve"
# A job has one processor: it is bounded in processor time, and others run concurrently.
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), "1"
) | {"TOKENIZERS_PARALLELISM": "false"}
FORK_TIMEOUT_S = 10.0
LEAST_WAIT_S = 0.005
# Imports of what a handler needs, on a machine that does much else.
START_TIMEOUT_S = 300.0


class HelperUnavailable(Exception):
    """The helper cannot be built; the text contains the reason."""


class Worker:
    """One process, used by one thread at a time."""

    def __init__(self, channel: socket.socket, pid: int, kill: Callable[[], None]) -> None:
        self._channel = channel
        self._pid = pid
        self._kill = kill
        self._used_s = 0.0  # before the job
        self.is_used = False  # it has answered a job

    @property
    def has_ended(self) -> bool:
        """True if it ended while idle."""
        return is_readable(self._channel, 0)

    def send(self, *parts: bytes) -> None:
        """Begin a job; a worker that has ended does not answer."""
        self._used_s = processor_s(self._pid)
        with contextlib.suppress(Ended):
            send(self._channel, *parts)

    def answers_within(self, seconds: float, deadline: float) -> bool:
        """Return True if the answer begins, or the worker ends, within `seconds` of CPU time and by the deadline."""
        left = seconds
        while not is_readable(self._channel, left):
            left = seconds + self._used_s - processor_s(self._pid)
            if left <= 0 or time.monotonic() > deadline:
                return False
            left = max(left, LEAST_WAIT_S)
        return True

    def answer(self, deadline: float) -> memoryview | None:
        """The answer to the job; None where the worker has ended, or is not ready by the deadline."""
        try:
            return receive(self._channel, deadline)
        except (Ended, TooLate):
            return None

    def close(self) -> None:
        """End it, whatever it does."""
        self._kill()
        self._channel.close()


class Workers:
    """Starts workers, and keeps those that wait for a job. The first process starts with the first worker."""

    def __init__(self, name: str, handler: str, setup: bytes, limits: Limits) -> None:
        """`handler`: "module:Class", which is built with `setup`."""
        self.limits = limits
        self._start = partial(_Source, name, handler, setup, limits)
        self._lock = threading.Lock()
        self._source: _Source | None = None
        self._idle: list[Worker] = []
        self._is_closed = False

    def facts(self) -> bytes:
        """Facts of the handler; starts the process that builds it. Raises HelperUnavailable."""
        with self._lock:
            source = self._current()
        return source.ready().facts

    def take(self, *, is_new: bool = False) -> Worker:
        """A worker that waits, or a new one, as always with `is_new`. Raises HelperUnavailable."""
        while True:
            with self._lock:
                worker = None if is_new else self._waiting()
                if worker is not None:
                    return worker
                source = self._current()
            if source.ready().can_fork:
                return source.fork()
            with self._lock:  # it is the worker of the first that comes
                if self._source is source:
                    self._source = None
                    return source.as_worker()

    def keep(self, worker: Worker) -> None:
        """Return a worker that has answered to the idle ones."""
        worker.is_used = True
        with self._lock:
            if not self._is_closed:
                self._idle.append(worker)
                return
        worker.close()

    @property
    def are_lost(self) -> bool:
        """True if the process from which workers are forked was killed, and the workers with it."""
        with self._lock:
            return self._source is not None and self._source.has_ended

    def close(self) -> None:
        """End the processes. Workers that have a job end with the process they were forked from."""
        with self._lock:
            self._is_closed = True
            idle = self._idle
            self._idle = []
            source = self._source
            self._source = None
        for worker in idle:
            worker.close()
        if source is not None:
            source.close()

    def _waiting(self) -> Worker | None:
        while self._idle:
            worker = self._idle.pop()
            if not worker.has_ended:
                return worker
            worker.close()
        return None

    def _current(self) -> _Source:
        if self._is_closed:
            raise HelperUnavailable("this front end ends")
        if self._source is not None and self._source.has_ended:
            self._source.close()
            self._source = None
        if self._source is None:
            self._source = self._start()
        return self._source


class _Source:
    """The process that builds the handler. Any thread."""

    def __init__(self, name: str, handler: str, setup: bytes, limits: Limits) -> None:
        self._setup = setup
        self._ready: Ready | None = None
        self._lock = threading.Lock()
        self._channel, theirs = socket.socketpair()
        payload = {
            "channel": str(theirs.fileno()),
            "handler": handler,
            "limits": msgspec.json.encode(limits).decode(),
        }
        start = partial(
            start_child,
            f"helper {name}",
            SERVE,
            payload,
            environment=ONE_THREAD,
            pass_fds=[theirs.fileno()],
            has_lifeline=False,
        )
        with theirs:
            # Lowered from its first instruction on, as the thread is that starts it.
            self._child = Background("helper-start", 0, FIRST_NICE).run(start)
        self._child.release()

    def ready(self) -> Ready:
        """Report of the process once the handler is built; waits for it. Raises HelperUnavailable."""
        with self._lock:
            if self._ready is None:
                self._ready = self._received()
        if self._ready.error:
            self.end()
            raise HelperUnavailable(self._ready.error)
        return self._ready

    def _received(self) -> Ready:
        try:
            send(self._channel, self._setup)
            answer = receive(self._channel, time.monotonic() + START_TIMEOUT_S)
        except (Ended, TooLate):
            return Ready(error="its process ended at its start")
        return msgspec.msgpack.decode(answer, type=Ready)

    @property
    def has_ended(self) -> bool:
        """True if the process has exited."""
        return self._child.exit_code is not None

    def fork(self) -> Worker:
        """A worker that is a fork. Raises HelperUnavailable."""
        ours, theirs = socket.socketpair()
        try:
            with theirs, self._lock:
                pid, descriptor = self._ask(theirs)
        except BaseException:
            ours.close()
            raise
        return Worker(ours, pid, _Killer(descriptor))

    def _ask(self, channel: socket.socket) -> tuple[int, int]:
        """Process id and descriptor of a fork."""
        try:
            socket.send_fds(self._channel, [FORK], [channel.fileno()])
            if not is_readable(self._channel, FORK_TIMEOUT_S):
                raise HelperUnavailable("its process does not answer")
            answer, fds, _, _ = socket.recv_fds(self._channel, FORKED.size, 1)
        except OSError as error:
            raise HelperUnavailable("its process has ended") from error
        if not fds:
            raise HelperUnavailable("its process cannot be forked, or has ended")
        (pid,) = FORKED.unpack(answer)
        return pid, fds[0]

    def as_worker(self) -> Worker:
        """This process, as the only worker that it will be."""
        return Worker(self._channel, self._child.pid, self.end)

    def end(self) -> None:
        """Kill the process and its forks; threads that wait for it continue."""
        self._child.process.send_signal(signal.SIGKILL)
        self._child.process.wait()

    def close(self) -> None:
        """Kill the process, and release its resources here, once waiting threads have noticed."""
        self.end()
        with self._lock:
            self._channel.close()


class _Killer:
    """Ends one fork, by its descriptor, once."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __call__(self) -> None:
        if self._descriptor >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
            os.close(self._descriptor)
        self._descriptor = -1


def processor_s(pid: int) -> float:
    """Seconds of processor time that a process has used; wall-clock time on platforms that do not report it."""
    if sys.platform != "linux":
        return time.monotonic()
    try:
        return time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3)
    except OSError:  # it has ended
        return math.inf
