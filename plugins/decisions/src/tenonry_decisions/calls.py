"""The call set `decisions`: records of running engines. Front end, and engine process.

The engine half puts an observed scheduler in the place of the engine's, if records are wanted; else it does nothing.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError, Unsupported
from tenonry.interfaces.call_set import CallSet, Engine, FrontEnd, FrontEndHalf
from tenonry_decisions.settings import DecisionSettings


class DecisionCalls(CallSet):
    """Calls that return decision records."""

    Settings = DecisionSettings
    name = "decisions"

    @classmethod
    def check(cls, config: EngineConfig, options: BaseModel) -> None:
        """Decisions of a shadow are recorded somewhere, and its scheduler accepts the configuration."""
        settings = config.section(DecisionSettings)
        if not settings.has_shadow:
            return
        if not settings.is_on:
            raise ConfigError(
                "shadow_scheduler and shadow_policy need a record: add --decision-log FILE or --decision-steps N"
            )
        from tenonry_decisions.shadow import check_candidate

        check_candidate(config, settings)

    def engine_half(self, engine: Engine) -> object | None:
        settings = self.context.config.section(DecisionSettings)
        if not settings.is_on:
            return None
        from tenonry_decisions.attach import attach

        return EngineDecisions(attach(engine, self.context.config, settings))

    def front_end_half(self, front_end: FrontEnd) -> FrontEndHalf:
        return Decisions(front_end, self.context.config)

    def blocking_half(self, llm: Any, engine: Engine) -> Any:
        return self.engine_half(engine)


class EngineDecisions:
    """Records of one engine. `records`: an `EngineRecords`."""

    def __init__(self, records: Any) -> None:
        self._records = records

    def decision_records(self) -> bytes:
        """The steps that are kept in memory, as frames."""
        return bytes(self._records.frames())


class Decisions(FrontEndHalf):
    """Records of all engines."""

    def __init__(self, front_end: FrontEnd, config: EngineConfig) -> None:
        self._calls = front_end.calls
        self._settings = config.section(DecisionSettings)

    async def records(self) -> list[bytes]:
        """The steps that each engine keeps in memory, as frames. Raises Unsupported without `decision_steps`."""
        if not self._settings.decision_steps:
            raise Unsupported(
                "no decision records are kept in memory; start with --decision-steps N"
            )
        return list(await self._calls.call("decision_records"))
