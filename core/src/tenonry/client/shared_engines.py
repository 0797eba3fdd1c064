"""Engines that a front end uses and somebody else owns: what `AsyncLLM` wants to know of them. Front end."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

from tenonry.client.core_client import CoreClient
from tenonry.client.stat_manager import StatManager
from tenonry.model_info import ModelInfo
from tenonry.plugin_plan import PluginPlan
from tenonry.stats import EngineInfo, IterationStats


class SharedEngines(ABC):
    """In the place of `Engines`, with what their owner has resolved and built already.

    `index`: the client of the engines that this front end is, one of `count` beside the owner; `stats` hears its
    numbers; `info` is there after `start`. `on_death(engine index, reason)`, from any thread, says that an engine is
    gone; the AsyncLLM sets it before it calls `start`.
    """

    plan: PluginPlan
    model: ModelInfo
    stats: StatManager
    client: CoreClient
    info: EngineInfo
    index: int
    count: int
    on_death: Callable[[int, str], None]

    @abstractmethod
    def start(self) -> None:
        """Return when the engines can be used. Raises LaunchError or EngineDeadError."""

    @abstractmethod
    def listen(self, loop: asyncio.AbstractEventLoop, take: Callable[[], dict[int, IterationStats]]) -> None:
        """Requests are taken on this loop from now on; `take` returns the numbers since the last time, by engine."""

    @abstractmethod
    def pids(self) -> dict[str, int]:
        """Processes of the engines: name → process id."""

    @abstractmethod
    async def scale(self, size: int, drain_timeout: float) -> None:
        """Go on with `size` engines; raises Unsupported where their number is fixed."""

    @abstractmethod
    def shutdown(self, timeout: float = 5.0) -> None:
        """Leave the engines to their owner. Idempotent."""
