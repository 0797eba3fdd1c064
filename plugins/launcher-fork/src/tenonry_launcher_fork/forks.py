"""Child processes that are forks of one which has imported their modules. The parent's process, on Linux.

Imports take most of an engine's start. A process that has only done them is forked for each engine of an instance: all
but the first start without imports, and they share the memory of the imported modules. An engine with ranks in child
processes forks those from a fork server of its own, which was forked beside it.

A fork becomes a child of this process like any other: its exit code can be waited for, and the kernel ends it with this
process, not with the one that was forked. For that, a second fork is re-parented: Linux assigns a process whose parent
ended to the nearest ancestor that is a subreaper (`PR_SET_CHILD_SUBREAPER`), as this process is for that moment.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from tenonry.launch.spawn import GROUP_SIGNALS, Process, Start, start_fresh
from tenonry.launch.supervise import CHILD_DEFAULTS, start_child

logger = logging.getLogger("tenonry.launch")
READY = b"+"
ANSWER_BYTES = 64
ANSWER_TIMEOUT_S = 10.0  # a fork takes milliseconds
PR_SET_CHILD_SUBREAPER = 36
PR_GET_CHILD_SUBREAPER = 37
_ADOPTING = threading.Lock()


def _is_supported() -> bool:
    """Return True on a Linux that supports waiting for process descriptors (some containers do not)."""
    if sys.platform != "linux":
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


IS_SUPPORTED = _is_supported()


class ForkedProcess:
    """A child that another process forked. From any thread."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """The exit code of a process that has ended, negative for a signal; 0 where something else waited for it."""
        with self._lock:
            if self._code is None:
                try:
                    pid, status = os.waitpid(self.pid, os.WNOHANG)
                except ChildProcessError:
                    pid, status = self.pid, 0
                if pid:
                    self._code = os.waitstatus_to_exitcode(status)
            return self._code

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises subprocess.TimeoutExpired."""
        ended = None
        with self._lock, contextlib.suppress(ProcessLookupError):
            if self._code is None:
                ended = os.pidfd_open(self.pid)
        if ended is not None:
            poller = select.poll()
            poller.register(ended, select.POLLIN)
            poller.poll(None if timeout is None else 1000 * timeout)
            os.close(ended)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def begin(self) -> None:
        """Do nothing: it runs already."""

    def send_signal(self, number: int, /) -> None:
        """Send a signal; no-op for a process that has ended."""
        with self._lock, contextlib.suppress(ProcessLookupError):
            if self._code is None:
                os.kill(self.pid, number)


class ForksClosed(OSError):
    """The fork server was stopped by its owner, which starts no more children."""


class LaterProcess:
    """A child that begins with `begin`, unless a signal ends it before; its `pid` is 0 until then. From any thread.

    `starts`: ways to start it, in order; each may raise OSError. `release` is called once it has begun or failed.
    """

    def __init__(
        self, starts: Sequence[Callable[[], Process]], release: Callable[[], None]
    ) -> None:
        self._starts = starts
        self._release = release
        self._process: Process | None = None
        self._code: int | None = None  # of a child that never began
        self._lock = threading.Lock()
        self._is_decided = threading.Event()

    def begin(self) -> None:
        """Start it. Called once, by the thread that then waits for its end."""
        for start in self._starts:
            if self._code is None and self._process is None:
                try:
                    self._become(start())
                except ForksClosed:
                    break
                except OSError as error:
                    logger.info("falling back to another way to start a process: %s", error)
        with self._lock:
            if self._process is None and self._code is None:
                self._code = 1
        self._is_decided.set()
        self._starts = ()
        self._release()

    def _become(self, process: Process) -> None:
        with self._lock:
            if self._code is None:
                self._process = process
                return
        process.send_signal(signal.SIGKILL)
        process.wait()

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    def poll(self) -> int | None:
        return self._code if self._process is None else self._process.poll()

    def wait(self, timeout: float | None = None) -> int:
        if not self._is_decided.wait(timeout):
            raise subprocess.TimeoutExpired("a process that has not begun", timeout or 0)
        code = self._code
        if self._process is not None:
            code = self._process.wait(timeout)
        assert code is not None  # noqa: S101 - one or the other is decided
        return code

    def send_signal(self, number: int, /) -> None:
        with self._lock:
            if self._process is not None:
                self._process.send_signal(number)
            elif self._code is None and number not in GROUP_SIGNALS:  # which a child ignores
                self._code = -number
                self._is_decided.set()


class ForkServer:
    """A ProcessStarter whose children are forks of `process`, a child with the other end of `channel`.

    The server sends READY once it can be forked, and exits when the channel is closed. `has_own_servers`: each of its
    children has a separate fork server.
    """

    follows_thread = False

    def __init__(
        self, process: Process, channel: socket.socket, *, has_own_servers: bool = False
    ) -> None:
        self.process = process
        self._channel = channel
        self._has_own_servers = has_own_servers
        self._is_ready = False
        self._lock = threading.Lock()
        self._finalizer = weakref.finalize(self, _end, process, channel, os.getpid())

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    @property
    def has_given_up(self) -> bool:
        """True if it exited by itself, since its imports cannot be forked."""
        return self.process.poll() == 0

    def start(self, start: Start) -> Process:
        """Return a child that begins as a fork, or in a fresh interpreter if that fails."""
        return LaterProcess((partial(self._fork, start), partial(start_fresh, start)), start.close)

    def _fork(self, start: Start) -> Process:
        """Raises OSError. Waits until the server is ready."""
        standard_input, message = os.pipe()
        try:
            request = {
                "environment": dict(start.environment),
                "folder": os.getcwd(),  # noqa: PTH109 - as text
                "numbers": start.fds,
                "parent": os.getpid(),
                "has_own_server": self._has_own_servers,
            }
            with self._lock:
                self._wait_until_ready()
                pid = self._ask(json.dumps(request).encode(), [standard_input, 1, 2, *start.fds])
        except BaseException:
            os.close(message)
            raise
        finally:
            os.close(standard_input)
        with contextlib.suppress(BrokenPipeError), os.fdopen(message, "wb") as pipe:
            pipe.write(start.message)
        return ForkedProcess(pid)

    def _wait_until_ready(self) -> None:
        if not self._is_ready:
            self._is_ready = self._channel.recv(ANSWER_BYTES) == READY
        if not self._is_ready:
            closed = not self._finalizer.alive
            raise (ForksClosed if closed else OSError)(
                "the process of which engines are forked has ended"
            )

    def _ask(self, request: bytes, fds: list[int]) -> int:
        """The process id of a fork. Raises OSError; a server that does not answer, such as a stopped one, is ended."""
        self._channel.settimeout(ANSWER_TIMEOUT_S)
        try:
            with _adopting():
                socket.send_fds(self._channel, [request], fds)
                answer = self._channel.recv(ANSWER_BYTES)
        except TimeoutError:
            self.close()  # its answer would be taken for that to the next request
            raise
        if not answer.isdigit():
            raise OSError("the process of which engines are forked could not be forked")
        return int(answer)

    def close(self) -> None:
        """End it, whatever it does. Idempotent; also when this object is collected, and at interpreter exit."""
        self._finalizer()


class ReadyForkServer(ForkServer):
    """A fork server whose imports were done before it began, so that children begin in `start`."""

    def __init__(self, process: Process, channel: socket.socket) -> None:
        super().__init__(process, channel)
        self._is_ready = True

    def start(self, start: Start) -> Process:
        """Return a fork, or a fresh interpreter if that fails. Raises OSError."""
        try:
            return self._fork(start)
        except OSError as error:
            logger.info("starting a rank in a fresh interpreter: %s", error)
            return start_fresh(start)
        finally:
            start.close()


def _end(process: Process, channel: socket.socket, owner: int) -> None:
    if os.getpid() != owner:  # a fork of the owner, which user code made
        return
    with contextlib.suppress(OSError):
        channel.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for an answer
    process.send_signal(signal.SIGKILL)
    process.wait()
    channel.close()


def start_fork_server(imports: str, argument: str, *, has_own_servers: bool = False) -> ForkServer:
    """Start a child that imports ("module:function", called with `argument`) and is then forked. Raises LaunchError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        child = start_child(
            "fork-server",
            "tenonry_launcher_fork.fork_server:serve",
            {"channel": str(theirs.fileno()), "imports": imports, "argument": argument},
            environment=CHILD_DEFAULTS,  # threads that numpy would start prevent a fork
            pass_fds=[theirs.fileno()],
            has_lifeline=False,
        )
    child.release()
    return ForkServer(child.process, ours, has_own_servers=has_own_servers)


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Orphans among the descendants of this process become its children."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.c_int()
    with _ADOPTING:
        libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before))
        if libc.prctl(PR_SET_CHILD_SUBREAPER, 1):
            raise OSError(ctypes.get_errno(), "this process cannot take over the forks of another")
        try:
            yield
        finally:
            libc.prctl(PR_SET_CHILD_SUBREAPER, before.value)
