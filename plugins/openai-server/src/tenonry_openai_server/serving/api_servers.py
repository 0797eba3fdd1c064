"""Several API servers: the top process is a supervisor that owns the listening socket, the engines and the stat
loggers, and serves no request itself.

Its one loop receives the end of every server, engine and coordinator. Servers start while the engines load, and stop
before them.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import signal
import socket
import tempfile
import threading
import time
from collections import deque
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from types import FrameType

import msgspec

from tenonry.config import EngineConfig
from tenonry.errors import LaunchError, TenonryError
from tenonry.launch.supervise import STOP_SIGNAL, Child, Supervisor, describe_exit
from tenonry.transport.folder import RunDirectory
from tenonry_openai_server.serving.api_server import ROLE
from tenonry_openai_server.serving.lifecycle import Start, StopStart, announce, set_title, signals
from tenonry_openai_server.serving.logging_setup import set_up_logging
from tenonry_openai_server.settings import ServerConfig
from tenonry_scale_out.hub import Hub

logger = logging.getLogger("tenonry.server")

MAX_RESTARTS = 3  # of one server, within RESTART_WINDOW_S
RESTART_WINDOW_S = 60.0
POLL_S = 1.0
LEAVE_S = 0.5  # a signal that ended a server may be one to all, and reach this process later
STOP_GRACE_S = (
    5.0  # after a drain, or instead of it: last responses are written, connections closed
)


def serve_many(config: EngineConfig, settings: ServerConfig, sock: socket.socket) -> int:
    """Serve with `settings.api_server_count` processes until a signal. Returns the exit status: 0 after a signal, 1
    after an unexpected death.

    Raises TenonryError when the engines or the servers cannot start.
    """
    set_up_logging("supervisor")
    set_title("supervisor")
    top = TopProcess(config, settings, sock)
    # Until signals have handlers, one ends this process, and nothing may be there that it would leave.
    with signals(top) as start, closing(RunDirectory()) as folder:
        signal.signal(signal.SIGUSR1, partial(top.interrupt_start, start))
        try:
            logger.info("listening on %s; loading %s", settings.url, config.model)
            start.is_underway = True
            top.start(start, folder.path)
            start.is_underway = False
            if top.is_stopping:
                raise StopStart
            return asyncio.run(top.serve())
        except StopStart:
            start.is_underway = False
            if top.failure is not None and top.is_interrupted:
                raise LaunchError(top.explain(*top.failure)) from None
            logger.info("stopped before the model was loaded")
            return 0
        finally:
            start.is_underway = False
            top.close()


class TopProcess:
    """Starts, watches and stops the API servers; `hub` holds their shared parts. Main thread, except for `_on_exit`."""

    def __init__(self, config: EngineConfig, settings: ServerConfig, sock: socket.socket) -> None:
        self._config = config
        self._settings = settings
        self._sock = sock
        self.is_stopping = False
        self.is_interrupted = False
        self.failure: tuple[str, int, int] | None = None  # the server that ended during the start
        self._hub: Hub | None = None
        self._folder = ""
        self._processes = Supervisor()
        self._processes.on_exit(self._on_exit)
        self._children: dict[int, Child] = {}
        self._leaving: set[int] = set()
        self._restarts: dict[int, deque[float]] = {}
        self._exits: queue.SimpleQueue[tuple[str, int, int]] = queue.SimpleQueue()
        self._waiting = set(
            range(1, settings.api_server_count + 1)
        )  # servers that have not served yet
        self._loop: asyncio.AbstractEventLoop | None = None
        self._status = 0
        self._stops = 0  # number of requested stops
        self._stops_passed_on = 0
        self._start_error: LaunchError | None = None
        self._deadline: float | None = None
        self._changed: asyncio.Event

    @property
    def hub(self) -> Hub:
        """Shared parts of the servers. Made by `start`."""
        assert self._hub is not None  # noqa: S101 - see above
        return self._hub

    # ------------------------------------------------------------------ start
    def start(self, start: Start, folder: str) -> None:
        """Start the servers, then the engines; returns when the engines are ready. Raises TenonryError or StopStart.

        A process that is being started is not interrupted: `close` stops those that are known.
        """
        self._folder = tempfile.tempdir = (
            folder  # all our sockets: a server that finds itself alone removes them
        )
        self._hub = Hub(
            self._config,
            self._settings.api_server_count,
            on_connected=self._connected,
            on_engine_died=self._engine_died,
        )
        for index in range(1, self._settings.api_server_count + 1):
            start.is_underway = False
            self._start_server(index)
            start.is_underway = True
            if self.is_stopping:
                raise StopStart
            if self.failure is not None:
                self.interrupt_start(start)
        self._hub.start()

    def _start_server(self, index: int) -> None:
        fd = self._sock.fileno()
        payload = {
            "config": self.hub.config.model_dump_json(),
            "settings": self._settings.model_dump_json(),
            "attachment": msgspec.json.encode(self.hub.attachment(index)).decode(),
            "socket": str(fd),
            # one answers probes while the engines load; with ready servers, a server opens when it is ready
            "opens": "immediately" if index == 1 and index in self._waiting else "when ready",
        }
        name = f"api-server {index}"
        self._processes.stop_some([name])  # forgets its predecessor
        self._children[index] = self._processes.start(
            name, ROLE, payload, pass_fds=(fd,), removes=self._folder
        )

    def interrupt_start(
        self, start: Start, number: int = 0, frame: FrameType | None = None
    ) -> None:
        """Stop loading the engines after a server ended. `number` and `frame`: as in a signal handler."""
        if start.is_underway and (self.is_interrupted or not self.is_stopping):
            self.is_stopping = True
            self.is_interrupted = True
            start.interrupt(number, frame)

    def _on_exit(self, name: str, pid: int, code: int) -> None:
        """A watcher's thread: a server is gone."""
        self._exits.put((name, pid, code))
        loop = self._loop
        if loop is None:
            self.failure = self.failure or (name, pid, code)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        else:
            with suppress(RuntimeError):  # the loop is closed: all are being stopped
                loop.call_soon_threadsafe(self._take_exits)

    def explain(self, name: str, pid: int, code: int) -> str:
        """The message about an end: the process, its exit, and its last error."""
        index = _index(name)
        is_serving = self._loop is not None
        last_error = self.hub.detach(index) if is_serving else self.hub.last_error(index)
        message = f"{name} (pid {pid}) ended with {describe_exit(code)}"
        return f"{message}: {last_error}" if last_error else message

    # ------------------------------------------------------------------ the loop
    async def serve(self) -> int:
        """Serve until all servers have ended. Returns the exit status. Raises LaunchError for a server that never
        served.
        """
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.hub.listen(self._loop)
        self._take_exits()
        if self.is_stopping:  # since the engines became ready
            self._stop()
        while self._children or self._leaving:
            try:
                async with asyncio.timeout(POLL_S):
                    await self._changed.wait()
            except TimeoutError:
                self._look()
            self._changed.clear()
            if self._deadline is not None and time.monotonic() > self._deadline:
                break
        if self._start_error is not None:
            raise self._start_error
        return self._status

    def _connected(self, index: int) -> None:
        """Record a server that accepts requests."""
        if self._waiting:
            self._waiting.discard(index)
            if not self._waiting:
                announce(self.hub.info, self._settings)
        else:
            logger.info("api-server %d serves again", index)

    def _look(self) -> None:
        """Find ends that were not reported."""
        for child in self._children.values():
            if (code := child.exit_code) is not None:
                self._exits.put((child.name, child.pid, code))
        self._take_exits()

    def _take_exits(self) -> None:
        while not self._exits.empty():
            name, pid, code = self._exits.get()
            index = _index(name)
            child = self._children.get(index)
            if child is None or child.pid != pid:
                continue
            del self._children[index]
            what = self.explain(name, pid, code)
            if self.is_stopping:
                self._ended(what, code)
            elif code:
                self._died(index, what, code)
            else:
                self._leaving.add(index)
                asyncio.get_running_loop().call_later(LEAVE_S, self._left, index, what)
        self._changed.set()

    def _left(self, index: int, what: str) -> None:
        """Handle an unexpected exit with status 0 while this process still serves."""
        self._leaving.discard(index)
        if not self.is_stopping:
            self._died(index, what, 0)
        self._changed.set()

    def _ended(self, what: str, code: int) -> None:
        """Handle the end of a server after a stop was requested. The stop signal ends one during its start."""
        if code not in {0, -STOP_SIGNAL}:
            self._status = 1
            if self.hub.dead is None:
                logger.error("%s", what)

    def _died(self, index: int, what: str, code: int) -> None:
        """A server ended unexpectedly: restart it, or stop everything."""
        if index in self._waiting:
            self._start_error = LaunchError(what)
            self._fail(None)
            return
        logger.log(logging.ERROR if code else logging.WARNING, "%s", what)
        if self._settings.api_server_death == "stop":
            if code:
                self._fail(what)
            return
        restarts = self._restarts.setdefault(index, deque())
        now = time.monotonic()
        while restarts and restarts[0] < now - RESTART_WINDOW_S:
            restarts.popleft()
        if len(restarts) >= MAX_RESTARTS:
            self._fail(
                f"{what}; it was restarted {MAX_RESTARTS} times within {RESTART_WINDOW_S:g} s"
            )
            return
        restarts.append(now)
        try:
            self._start_server(index)
        except (TenonryError, OSError) as error:
            self._fail(f"{what}; another cannot be started: {error}")

    def _engine_died(self, _reason: str) -> None:
        if self.hub.dead is not None and not self.is_stopping:
            self._fail(
                self.hub.dead, stop_servers=False
            )  # they detect it, answer their clients and exit

    # ------------------------------------------------------------------ stop
    def _fail(self, cause: str | None, *, stop_servers: bool = True) -> None:
        """Stop everything because of an unexpected death."""
        if cause is not None:
            logger.critical("stopping: %s", cause)
        self.is_stopping = True
        self._status = 1
        self._deadline = time.monotonic() + STOP_GRACE_S
        if stop_servers:
            self._stop_servers(abort=True)

    def request_stop(self) -> None:
        """First call: finish running requests; second: abort them. Safe in a signal handler."""
        self._stops += 1
        self.is_stopping = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._stops_passed_on == self._stops:  # a signal arrived during the loop of `serve`
            return
        self._stops_passed_on = self._stops
        drain_s = 0.0 if self._stops > 1 else self._config.shutdown_timeout
        self._deadline = min(
            time.monotonic() + drain_s + STOP_GRACE_S, self._deadline or float("inf")
        )
        self._stop_servers(abort=self._stops > 1)
        self._changed.set()

    def _stop_servers(self, *, abort: bool) -> None:
        connected = self.hub.stop_servers(abort=abort)
        for index, child in self._children.items():
            if index not in connected:  # it still starts
                child.process.send_signal(STOP_SIGNAL)

    def close(self) -> None:
        """Stop all processes, servers first. Idempotent."""
        self._processes.stop()
        if self._hub is not None:
            self._hub.shutdown()
        self._sock.close()
        if self._settings.uds:
            Path(self._settings.uds).unlink(missing_ok=True)


def _index(name: str) -> int:
    return int(name.rpartition(" ")[2])
