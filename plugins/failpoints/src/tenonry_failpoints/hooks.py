"""The hook module: looks whether faults are set, before anything is started. The process that starts the engines."""

from __future__ import annotations

import os

from tenonry.plugin.hookspecs import hookimpl
from tenonry_failpoints import VARIABLE

FRONT_END = "front end"


def is_idle() -> bool:
    """Without faults it is none of the plugins in use."""
    return not os.environ.get(VARIABLE)


@hookimpl
def tenonry_configured() -> None:
    """Reject faults that cannot be parsed; arm the others, here and in all processes that start from here."""
    from tenonry_failpoints.arm import arm

    arm(FRONT_END)
