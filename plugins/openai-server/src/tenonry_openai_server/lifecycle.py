"""`tenonry serve` from the taken port to the exit status. The main thread owns the engines and the signals; the event
loop, with the HTTP server, lives in a thread of its own and answers from the first moment, while the model loads.

So engines are started and stopped by the thread that stays (a child may be tied to the life of the thread that made
it), a signal during a long start interrupts it where it stands, and probes never hang.
"""

from __future__ import annotations

import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from tenonry.config import EngineConfig
from tenonry.logs import configure_logging
from tenonry.plugin_discovery import kernel_version
from tenonry_openai_server.front_door import FrontDoor
from tenonry_openai_server.settings import ServerConfig
from tenonry_openai_server.state import ServerState

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM

logger = logging.getLogger("tenonry.server")

SIGNALS = (signal.SIGTERM, signal.SIGINT)
PROBES = frozenset({"/health", "/ready", "/metrics"})
POLL_S = 0.5  # a signal may reach another thread; the main thread looks up at least this often


class StopStart(BaseException):
    """A signal came while the engines were starting. No Exception, so that nobody mistakes it for a failure."""


def serve(
    config: EngineConfig,
    settings: ServerConfig,
    sock: socket.socket,
    make_engine: Callable[[EngineConfig], AsyncLLM] | None = None,
) -> int:
    """Serve until told to stop. Returns the exit status: 0 after a signal, 1 after the engine died.

    Raises TenonryError when the engines cannot start or the server is set up wrongly.
    """
    _set_up_logging()
    _set_title()
    door = FrontDoor(ServerState(config, settings), sock)
    engine: Any = None
    with _signals(door) as starting:
        door.start()
        logger.info("listening on %s; loading %s", settings.url, config.model)
        try:
            starting.set()
            if door.is_stopping:
                raise StopStart
            engine = (make_engine or _make_engine)(config)
            starting.clear()
            if door.is_stopping:
                raise StopStart
            door.attach(engine)
            _announce(engine, settings)
            return door.wait(POLL_S)
        except StopStart:
            logger.info("stopped before the model was loaded")
            return 0
        finally:
            starting.clear()
            door.close()
            if engine is not None:
                engine.shutdown()


def _make_engine(config: EngineConfig) -> AsyncLLM:
    from tenonry.client.async_llm import AsyncLLM

    return AsyncLLM.from_config(config, context="server")


@contextmanager
def _signals(door: FrontDoor) -> Iterator[threading.Event]:
    """Signals stop the server; while the yielded event is set, they stop the start."""
    starting = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        if not starting.is_set():
            door.request_stop()
            return
        door.is_stopping = True  # for the case that the exception meets code that may not raise, and is lost
        raise StopStart

    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield starting
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _announce(engine: AsyncLLM, settings: ServerConfig) -> None:
    """One line: where, and which plugins are in use."""
    parts = [f"{plugin.kind} {plugin.name} {plugin.version}".rstrip() for plugin in engine.info.plugins]
    plugins = ", ".join(parts) or "none"
    sys.stdout.write(f"tenonry {kernel_version()} ready at {settings.url} · {engine.info.model} · plugins: {plugins}\n")
    sys.stdout.flush()


def _set_up_logging() -> None:
    """The server's own lines and those of the HTTP library look alike and go to standard error."""
    configure_logging("api-server")
    handlers = logging.getLogger("tenonry").handlers
    for name, level in (("uvicorn.error", logging.WARNING), ("uvicorn.access", logging.INFO)):
        library = logging.getLogger(name)
        library.handlers, library.propagate = list(handlers), False
        library.setLevel(level)
    logging.getLogger("uvicorn.access").filters = [_no_probe]


def _no_probe(record: logging.LogRecord) -> bool:
    """Probes and scrapers that are content come every few seconds; they would drown what matters."""
    path, status = record.args[2:5:2] if isinstance(record.args, tuple) and len(record.args) == 5 else ("", 0)
    return path not in PROBES or status != 200


def _set_title() -> None:
    import setproctitle

    setproctitle.setproctitle("tenonry: api-server 0")
