"""Launcher: where engine processes are started. Front end or supervisor; `process` on this node, `ray` on many."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
from pydantic import BaseModel

from tenonry.config import EngineConfig
from tenonry.interfaces.plugin import NO_OPTIONS, Plugin

VERSION = 1
SUPPORTED = frozenset({1})


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One engine to start: its index, and all that its process needs, as text.

    `environment` is added to the child's; device visibility is set there.
    """

    engine_index: int
    local_rank: int
    handshake_address: str
    config_text: str
    plan_text: str
    model_text: str
    epoch: int = 0
    local: bool = True
    environment: Mapping[str, str] = {}


@dataclass(slots=True)
class LauncherContext:
    """All that a launcher may know. `run_dir` is a private folder (0700) for sockets and files of this run."""

    config: EngineConfig
    run_dir: str
    options: BaseModel = NO_OPTIONS


class Launcher(Plugin, ABC):
    """Starts engine processes and owns them. No child outlives the process that launched it."""

    def __init__(self, context: LauncherContext) -> None:
        self.context = context

    @abstractmethod
    def start(self, engines: list[EngineSpec]) -> None:
        """Start every engine; if one cannot be started the others are stopped. Returns before they are ready."""

    @abstractmethod
    def finished(self) -> dict[str, int]:
        """Engines that ended: name → exit code (negative: the signal)."""

    @abstractmethod
    def on_exit(self, callback: Callable[[str, int, int], None]) -> None:
        """Call `callback(name, pid, exit code)` once per engine that ends, from another thread."""

    @abstractmethod
    def pids(self) -> dict[str, int]:
        """Engines that run: name → process id."""

    @abstractmethod
    def shutdown(self, timeout: float = 5.0) -> None:
        """Terminate, wait up to the shared deadline, kill the process trees that are left. Idempotent."""
