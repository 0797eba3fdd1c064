"""Logging and standard streams of our own processes: command line and children. Library users keep their own."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys

LEVEL_VARIABLE = "TENONRY_LOG_LEVEL"


def open_standard_streams() -> None:
    """Open the null device for each closed standard stream; otherwise a socket could receive its number, also in
    children.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if getattr(stream, "closed", stream is None):
            null = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115, PTH123 - for the life of the process
            os.set_inheritable(null.fileno(), True)
            setattr(sys, name, null)


def configure_logging(process: str) -> None:
    """Send `tenonry` records to standard error with the process named; the level comes from TENONRY_LOG_LEVEL.

    Standard output escapes characters outside its encoding.
    """
    open_standard_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        with contextlib.suppress(OSError):  # its descriptor was replaced by one of another type
            sys.stdout.reconfigure(errors="backslashreplace")
    handler = logging.StreamHandler()
    handler.setFormatter(
        logging.Formatter(f"%(levelname).1s %(asctime)s [{process}] %(message)s", "%H:%M:%S")
    )
    root = logging.getLogger("tenonry")
    root.handlers = [handler]
    root.propagate = False
    level = os.environ.get(LEVEL_VARIABLE, "INFO").upper()
    root.setLevel(level if level in logging.getLevelNamesMapping() else "INFO")
