"""`tenonry serve` from the bound port to the exit status. The main thread owns the engines and the signals; the event
loop, with the HTTP server, runs in a separate thread and responds immediately, while the model loads.

So engines are started and stopped by the thread that stays (a child may be tied to the life of the thread that made
it), a signal interrupts a long start at any point, and probes never hang.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

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

# Receives a configuration and the start of the HTTP server; returns once the engine is ready.
MakeEngine = Callable[[EngineConfig, Callable[[], None]], "AsyncLLM"]

# Modules that use locks or sockets, which an exception between two steps would leave open.
LOCKING = {
    "threading",
    "logging",
    "queue",
    "concurrent.futures._base",
    "concurrent.futures.thread",
    "importlib._bootstrap",
    "_frozen_importlib",
    "zmq.sugar.context",
}
DEFERRAL_S = 0.005
# Code that stays at one instruction for longer waits, and an exception may interrupt it.
MAX_DEFERRALS = 400
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
POLL_S = 0.5  # a signal may reach another thread; the main thread wakes at least this often


EngineType = TypeVar("EngineType")  # to be shut down at the end


class StopStart(BaseException):
    """A signal arrived while the engines were starting. No Exception, so that no handler treats it as a failure."""


class Start:
    """Set while engines start. No `threading.Event`: a signal handler could interrupt the holder of its lock, and
    deadlock.

    StopStart may arise between any two instructions of the main thread. It is deferred in modules that would leave a
    lock or a socket open, blocking other threads forever, and repeated if Python dropped it, as in a callback of a weak
    reference.
    """

    __slots__ = ("_num_deferred", "_number", "_place", "is_underway")

    def __init__(self) -> None:
        self.is_underway = False
        self._num_deferred = 0  # in a row at `_place`
        self._number = 0
        self._place = (0, 0)

    def interrupt(self, number: int = 0, frame: FrameType | None = None) -> None:
        """Raise StopStart into `frame`, interrupted by signal `number`, now or shortly afterwards."""
        self._number = number
        place = (id(frame), frame.f_lasti if frame is not None else 0)
        self._num_deferred = self._num_deferred + 1 if place == self._place else 0
        self._place = place
        if self._num_deferred < MAX_DEFERRALS and _keeps_locks(frame):
            _thread.start_new_thread(self._send_again, ())  # lock-free, as required in a handler
            return
        self.is_underway = False  # a second signal must not interrupt the clean-up after the first
        raise StopStart

    def lost(self) -> None:
        """Python has dropped the exception."""
        self.is_underway = True
        _thread.start_new_thread(self._send_again, ())

    def _send_again(self) -> None:
        time.sleep(DEFERRAL_S)
        if self.is_underway:
            signal.pthread_kill(threading.main_thread().ident or 0, self._number)


def _keeps_locks(frame: FrameType | None) -> bool:
    """Return True if our own code called, directly or indirectly, a module of `LOCKING` that contains `frame`."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module in LOCKING:
            return True
        if module.startswith("tenonry"):
            return False
        frame = frame.f_back
    return False


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
    """Start the engines, whose processes import concurrently with this one; they take longest and start first."""
    engines = own_engines(config)
    with contextlib.ExitStack() as started:
        started.callback(engines.shutdown)
        listen()
        started.pop_all()
    return make_front_end(config, settings, engines)


def serve_until_stopped(
    http: HTTPThread[Any],
    start: Start,
    make_engine: Callable[[EngineConfig], EngineType],
    on_ready: Callable[[EngineType], None] | None = None,
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
    except Exception as error:
        if engine is not None or not http.is_stopping:
            raise
        logger.info("stopped before the model was loaded: %s", error)
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
    """Stop the process, or the yielded start while it runs, by signals. Ignored afterwards: the process ends."""
    start = Start()

    def stop(number: int, frame: FrameType | None) -> None:
        if start.is_underway:
            top.is_stopping = True
            start.interrupt(number, frame)
        elif number != signal.SIGHUP or not top.is_stopping:
            top.request_stop()  # a terminal that closes may send SIGHUP twice, through its shell and through the system

    def on_unraisable(dropped: sys.UnraisableHookArgs) -> None:
        if dropped.exc_type is StopStart:
            start.lost()
        else:
            report(dropped)

    wanted = [
        number
        for number in numbers
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
    ]
    for number in wanted:  # without SIGHUP where `nohup` ignores it
        signal.signal(number, stop)
    report = sys.unraisablehook
    sys.unraisablehook = on_unraisable
    try:
        yield start
    finally:
        sys.unraisablehook = report
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
