"""The log of a server process: its own lines and the HTTP library's, without a line for each probe. Front end."""

from __future__ import annotations

import logging

from tenonry.logs import configure_logging

PROBES = frozenset({"/health", "/ping", "/ready", "/metrics"})
OK = 200
GARBAGE = ("Invalid HTTP request", "Unsupported upgrade request", "No supported WebSocket library")


def set_up_logging(process: str, root_path: str = "") -> None:
    """Log the server's own lines and those of the HTTP library in one format to standard error."""
    configure_logging(process)
    handlers = logging.getLogger("tenonry").handlers
    for name, level in (("uvicorn.error", logging.WARNING), ("uvicorn.access", logging.INFO)):
        library = logging.getLogger(name)
        library.handlers = list(handlers)
        library.propagate = False
        library.setLevel(level)
    logging.getLogger("uvicorn.access").filters = [ProbeFilter(root_path)]
    logging.getLogger("uvicorn.error").filters = [GarbageFilter()]


class GarbageFilter(logging.Filter):
    """Lowers lines about bytes that are no HTTP to DEBUG: anyone with access to the port could fill the log."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not str(record.msg).startswith(GARBAGE):
            return True
        record.levelno = logging.DEBUG
        record.levelname = "DEBUG"
        return logging.getLogger("tenonry").isEnabledFor(logging.DEBUG)


class ProbeFilter(logging.Filter):
    """Keeps a probe or a scrape out of the access log unless its status differs from that of the one before it.

    They arrive every few seconds and would hide important lines. The first one is logged if it failed.
    """

    def __init__(self, root_path: str = "") -> None:
        super().__init__()
        self._root_path = root_path
        self._last_status: dict[str, object] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if an access line is written. uvicorn's arguments: client, method, path, HTTP version, status."""
        if not isinstance(record.args, tuple) or len(record.args) != 5:
            return True
        _, _, full_path, _, status = record.args
        path = str(full_path).partition("?")[0].removeprefix(self._root_path)
        if path not in PROBES:
            return True
        is_changed = status != self._last_status.get(path, OK)
        self._last_status[path] = status
        return is_changed
