"""Logging of our own processes: command line and children. Library users keep their own configuration."""

from __future__ import annotations

import logging
import os

LEVEL_VARIABLE = "TENONRY_LOG_LEVEL"


def configure_logging(process: str) -> None:
    """Send `tenonry` records to standard error with the process named; the level comes from TENONRY_LOG_LEVEL."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        logging.Formatter(f"%(levelname).1s %(asctime)s [{process}] %(message)s", "%H:%M:%S")
    )
    root = logging.getLogger("tenonry")
    root.handlers = [handler]
    root.propagate = False
    level = os.environ.get(LEVEL_VARIABLE, "INFO").upper()
    root.setLevel(level if level in logging.getLevelNamesMapping() else "INFO")
