"""Call set `log-levels`: the log level of running engines. Front end and engine process."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tenonry.interfaces.call_set import CallSet, Engine, EngineCalls, FrontEnd, FrontEndHalf


class EngineLevel:
    """In every engine: its public methods are all that a front end can call."""

    def get(self) -> str:
        """Name of the log level."""
        return logging.getLevelName(logging.getLogger("tenonry").level)

    def set(self, level: str) -> None:
        """Set the log level."""
        logging.getLogger("tenonry").setLevel(level)


class Levels(FrontEndHalf):
    """In the front end: each call reaches every engine."""

    def __init__(self, engines: EngineCalls) -> None:
        self._engines = engines
        self._level: str | None = None

    async def get(self) -> list[str]:
        """Log level of each engine."""
        return await self._engines.call("get")

    async def set(self, level: str) -> None:
        """Set the log level of all engines, also of those that join later."""
        await self._engines.change("set", level)
        self._level = level

    async def on_join(self, engines: Sequence[int]) -> None:
        for index in engines:
            if self._level is not None:
                await self._engines.call_engine(index, "set", self._level)


class LogLevels(CallSet):
    """Reads and sets the log level of running engines: `AsyncLLM.calls["log-levels"]`."""

    interface_version = 1
    name = "log-levels"

    def engine_half(self, engine: Engine) -> EngineLevel:
        return EngineLevel()

    def front_end_half(self, front_end: FrontEnd) -> Levels:
        return Levels(front_end.calls)
