"""The event loop's thread: runs the HTTP server, drains on request, and notices a dead engine. Front end."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from starlette.types import ASGIApp

from tenonry.config import EngineConfig
from tenonry_helper_pool.threads import FairThreads
from tenonry_openai_server.serving.collector import FullCollections
from tenonry_openai_server.settings import ServerConfig
from tenonry_openai_server.state import Phase

if TYPE_CHECKING:
    from tenonry_openai_server.http_server import HTTPServer

logger = logging.getLogger("tenonry.server")

HEALTH_POLL_S = 0.2
DEAD_LINGER_S = 0.5  # after a death, new requests and probes are answered for so long
FLUSH_S = 1.0  # for the last bytes of responses whose requests have ended


class ServedState(Protocol):
    """State of a server, of one model or of several."""

    config: EngineConfig
    settings: ServerConfig
    phase: Phase
    idle: asyncio.Event

    def choose_parsers(self, engine: Any) -> None:
        """Find the parsers of answers, once, before `attach`."""

    def attach(self, engine: Any) -> None:
        """The engines are ready."""


StateType = TypeVar("StateType", bound=ServedState)


class HTTPThread(Generic[StateType]):
    """Answers HTTP from `start()` on, or from `attach()`.

    Public methods are called from the main thread.
    """

    def __init__(
        self,
        state: StateType,
        sock: socket.socket,
        *,
        make_app: Callable[[StateType], ASGIApp] | None = None,
        is_shared: bool = False,
        opens_when_ready: bool = False,
    ) -> None:
        """`make_app`: the application, by default that of one model. `is_shared`: other processes listen on this
        socket, too. `opens_when_ready`: answer from `attach()` on.
        """
        self.state = state
        self._engine: Any = None  # from `attach()` on
        self._make_app = make_app
        self.sock = sock
        self._is_shared = is_shared
        self._opens_when_ready = opens_when_ready
        self._threads = FairThreads()
        self._collections = FullCollections(self._num_connections)
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._up = threading.Event()
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._status = 0
        self._server: HTTPServer | None = None
        self._stops = 0
        self.is_stopping = False
        self._stopping: asyncio.Event
        self._aborting: asyncio.Event
        self._opened: asyncio.Event

    def start(self) -> None:
        """Start serving; returns once requests are answered. Raises the error that prevents it."""
        self._thread.start()
        self._up.wait()
        if self._error is not None:
            raise self._error

    def attach(self, engine: Any) -> None:
        """The engines are ready. Raises PluginError and ConfigError for output parsers that cannot be used."""
        self.state.choose_parsers(engine)
        self._call(lambda: self._attach(engine))

    def request_stop(self) -> None:
        """First call: finish running requests; second: abort them. Safe in a signal handler."""
        self.is_stopping = True
        self._call(self._stop)

    def stop(self, abort: bool) -> None:
        """Finish running requests, or abort them."""
        self.is_stopping = True
        self._call(self._abort if abort else self._stopping.set)

    def wait(self, poll_s: float) -> int:
        """Wait until the server has ended, waking every `poll_s` seconds for signals. Returns the exit status."""
        while not self._over.wait(poll_s):
            pass
        if self._error is not None:
            raise self._error
        return self._status

    def close(self) -> None:
        """End the thread immediately, if it runs."""
        self.stop(abort=True)
        if self._thread.ident is not None:
            self._thread.join()
        self.sock.close()
        if self.state.settings.uds and not self._is_shared:
            Path(self.state.settings.uds).unlink(missing_ok=True)

    def _call(self, function: object) -> None:
        loop = self._loop
        if loop is None:
            return
        try:
            loop.call_soon_threadsafe(function)  # type: ignore[arg-type]
        except RuntimeError:  # the loop has ended
            logger.debug("the event loop has already stopped")

    def _run(self) -> None:
        import uvloop

        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._main())
        except BaseException as error:  # noqa: BLE001  the main thread raises it
            self._error = error
        finally:
            self._loop = None
            self._collections.stop()
            self._up.set()
            self._over.set()

    async def _main(self) -> None:
        from tenonry_openai_server.http_server import make_server

        self._stopping = asyncio.Event()
        self._aborting = asyncio.Event()
        self._opened = asyncio.Event()
        if not self._opens_when_ready:
            self._opened.set()
        self._server = make_server(self._app(), self.state.settings, is_shared=self._is_shared)
        self._loop = asyncio.get_running_loop()
        self._loop.set_default_executor(self._threads)
        if self.is_stopping:  # since before there was a loop to call: nothing runs yet
            self._abort()
        server = asyncio.create_task(self._serve(self._server))
        self._loop.call_soon(self._up.set)
        try:
            self._status = await self._watch()
        finally:
            self._server.should_exit = True
            self._opened.set()
            await server

    def _app(self) -> ASGIApp:
        if self._make_app is not None:
            return self._make_app(self.state)
        from tenonry_openai_server.app import create_app

        return create_app(self.state)

    def _num_connections(self) -> int:
        return 0 if self._server is None else len(self._server.server_state.connections)

    async def _serve(self, server: HTTPServer) -> None:
        from tenonry_openai_server.http_server import serve_on

        await self._opened.wait()
        if not server.should_exit:
            await serve_on(server, self.sock)

    def _attach(self, engine: Any) -> None:
        self._engine = engine
        self._collections.start()
        self._threads.report_to(partial(engine.submit, "record_extra"))
        self.state.attach(engine)
        engine.listen()
        self._opened.set()

    def _stop(self) -> None:
        self._stops += 1
        self._stopping.set()
        if self._stops > 1:
            self._aborting.set()

    def _abort(self) -> None:
        self._stopping.set()
        self._aborting.set()

    @property
    def _is_engine_dead(self) -> bool:
        return self.state.phase is Phase.READY and bool(self._engine.errored)

    async def _watch(self) -> int:
        """Wait until a stop is requested or the engine dies, then end. Returns the exit status."""
        while not self._stopping.is_set() and not self._is_engine_dead:
            await _wait(self._stopping, HEALTH_POLL_S)
            self._collections.poll()
        self._collections.stop()  # nothing polls from here on
        if not self._stopping.is_set():
            return await self._on_engine_dead()
        started = self.state.phase is not Phase.STARTING
        self.state.phase = Phase.DRAINING
        return await self._drain(self._engine) if started else 0

    async def _drain(self, engine: Any) -> int:
        """Finish running requests within `shutdown_timeout`; abort the rest. New requests are rejected already."""
        timeout_s = self.state.config.shutdown_timeout
        left = engine.num_unfinished_requests
        if not left:
            logger.info("stopping")
        elif not self._aborting.is_set():
            logger.info("stopping: waiting up to %g s for %d requests", timeout_s, left)
        drain = asyncio.ensure_future(engine.drain(timeout_s))
        abort = asyncio.ensure_future(self._aborting.wait())
        await asyncio.wait({drain, abort}, return_when=asyncio.FIRST_COMPLETED)
        finished = (
            drain.done() and not drain.cancelled() and drain.exception() is None and drain.result()
        )
        if not finished:
            logger.warning("aborting %d requests", engine.num_unfinished_requests)
            await engine.abort_all()
        for task in (drain, abort):
            task.cancel()
        await asyncio.gather(drain, abort, return_exceptions=True)
        await self._flush()
        return 1 if engine.errored else 0

    async def _on_engine_dead(self) -> int:
        """Answer waiting clients with an error, then end."""
        logger.critical("the engine failed; stopping")
        self.state.phase = Phase.DEAD
        await _wait(self._aborting, DEAD_LINGER_S)
        await self._flush()
        return 1

    async def _flush(self) -> None:
        """Wait until responses whose requests have ended are written."""
        await _wait(self.state.idle, FLUSH_S)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set, at most `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
