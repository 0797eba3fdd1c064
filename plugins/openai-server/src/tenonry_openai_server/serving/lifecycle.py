"""`tenonry serve` from the taken port to the exit status. The main thread owns the engines and the signals; the event
loop, with the HTTP server, lives in a thread of its own and answers from the first moment, while the model loads.

So engines are started and stopped by the thread that stays (a child may be tied to the life of the thread that made
it), a signal interrupts a long start at any point, and probes never hang.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from tenonry.config import EngineConfig
from tenonry.info import EngineInfo
from tenonry.version import __version__
from tenonry_openai_server.serving.front_end import make_front_end, own_engines
from tenonry_openai_server.serving.http_thread import HTTPThread
from tenonry_openai_server.serving.logging_setup import set_up_logging
from tenonry_openai_server.settings import ServerConfig
from tenonry_openai_server.state import ServerState

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM

logger = logging.getLogger("tenonry.server")

# Given a configuration and what begins to answer HTTP; returns once the engine is ready.
MakeEngine = Callable[[EngineConfig, Callable[[], None]], "AsyncLLM"]

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
POLL_S = 0.5  # a signal may reach another thread; the main thread wakes at least this often


class StopStart(BaseException):
    """A signal came while the engines were starting. No Exception, so that no handler takes it for a failure."""


class Start:
    """Set while engines start. No `threading.Event`: a signal handler could interrupt the holder of its lock, and
    deadlock.
    """

    __slots__ = ("is_underway",)

    def __init__(self) -> None:
        self.is_underway = False


def serve(
    config: EngineConfig,
    settings: ServerConfig,
    sock: socket.socket,
    make_engine: MakeEngine | None = None,
) -> int:
    """Serve until a signal. Returns the exit status: 0 after a signal, 1 after the engine died.

    Raises TenonryError when the engines cannot start or the server is set up wrongly.
    """
    set_up_logging("api-server", settings.root_path)
    set_title("api-server 0")
    http = HTTPThread(ServerState(config, settings), sock)
    make = make_engine or functools.partial(start_own_engine, settings)

    def listen() -> None:
        http.start()
        logger.info("listening on %s; loading %s", settings.url, config.model)

    with signals(http) as start:
        return serve_until_stopped(
            http,
            start,
            lambda config: make(config, listen),
            lambda engine: announce(engine.info, settings),
        )


def start_own_engine(
    settings: ServerConfig, config: EngineConfig, listen: Callable[[], None]
) -> AsyncLLM:
    """The engines' processes import while this one does: they take longest, so they begin first."""
    engines = own_engines(config)
    with contextlib.ExitStack() as started:
        started.callback(engines.shutdown)
        listen()
        started.pop_all()
    return make_front_end(config, settings, engines)


def serve_until_stopped(
    http: HTTPThread,
    start: Start,
    make_engine: Callable[[EngineConfig], AsyncLLM],
    on_ready: Callable[[AsyncLLM], None] | None = None,
) -> int:
    """Load the engine while the HTTP thread answers already, then serve; returns and raises as `serve`."""
    engine: Any = None
    try:
        start.is_underway = True
        if http.is_stopping:
            raise StopStart
        engine = make_engine(http.state.config)
        start.is_underway = False
        if http.is_stopping:
            raise StopStart
        http.attach(engine)
        if on_ready is not None:
            on_ready(engine)
        return http.wait(POLL_S)
    except StopStart:
        logger.info("stopped before the model was loaded")
        return 0
    finally:
        start.is_underway = False
        http.close()
        if engine is not None:
            engine.shutdown()


class Stoppable(Protocol):
    """Object that signals can stop."""

    is_stopping: bool

    def request_stop(self) -> None:
        """Safe in a signal handler."""


@contextlib.contextmanager
def signals(top: Stoppable, numbers: Sequence[signal.Signals] = SIGNALS) -> Iterator[Start]:
    """Signals stop the process, or the yielded start while it is underway. Ignored afterwards: the process ends."""
    start = Start()

    def stop(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP and top.is_stopping:
            return  # a terminal that closes may send it twice, through its shell and through the system
        if not start.is_underway:
            top.request_stop()
            return
        start.is_underway = False  # a second signal must not interrupt the clean-up after the first
        top.is_stopping = True  # the exception is lost if it is raised in code that may not raise
        raise StopStart

    wanted = [
        number
        for number in numbers
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
    ]
    for number in wanted:  # without SIGHUP where `nohup` ignores it
        signal.signal(number, stop)
    try:
        yield start
    finally:
        for number in wanted:
            signal.signal(number, signal.SIG_IGN)


def announce(info: EngineInfo, settings: ServerConfig) -> None:
    """Write one line: the URL, the model, and the plugins in use."""
    parts = [f"{plugin.kind} {plugin.name} {plugin.version}".rstrip() for plugin in info.plugins]
    plugins = ", ".join(parts) or "none"
    sys.stdout.write(
        f"tenonry {__version__} ready at {settings.url} · {info.model} · plugins: {plugins}\n"
    )
    sys.stdout.flush()


def set_title(process: str) -> None:
    """Set the process title shown by `ps`."""
    import setproctitle

    setproctitle.setproctitle(f"tenonry: {process}")
