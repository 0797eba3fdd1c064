"""The role of an engine's process that may be a fork: its ranks are forks as well. Engine process."""

from __future__ import annotations

from collections.abc import Mapping

from tenonry.engine import proc
from tenonry_launcher_fork.fork_server import own_server


def run_engine(payload: Mapping[str, str]) -> int:
    """Runs the engine; returns its exit status."""
    return proc.run_engine(payload, own_server())
