"""The prefix `(worker 0.1 pid=4711) ` of each line that a rank writes. The engine's process, and the rank's."""

from __future__ import annotations

import logging
import os

from tenonry.launch.output import TARGETS
from tenonry.launch.supervise import Child

CYAN_BOLD, RESET = "\x1b[1;36m", "\x1b[0m"


def prefix_of(child: Child) -> str:
    """The prefix of a rank's lines, cyan and bold on a terminal unless NO_COLOR is set."""
    label = f"({child.name} pid={child.pid})"
    has_colour = os.isatty(TARGETS[1]) and "NO_COLOR" not in os.environ
    return f"{CYAN_BOLD}{label}{RESET} " if has_colour else f"{label} "


def shorten_log() -> None:
    """Leave the name, which is in the prefix, out of this process's log."""
    for handler in logging.getLogger("tenonry").handlers:
        handler.setFormatter(
            logging.Formatter("%(levelname).1s %(asctime)s %(message)s", "%H:%M:%S")
        )
