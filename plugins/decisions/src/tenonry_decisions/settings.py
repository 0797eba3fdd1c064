"""Settings of the call set `decisions`. Light: imported by the front end before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tenonry.config import PluginChoice, setting
from tenonry.interfaces.plugin import PluginSettings
from tenonry.plugin.kinds import KINDS
from tenonry.point import Point


class DecisionSettings(PluginSettings):
    """Settings of the call set `decisions`."""

    decision_log: str | None = None
    """File to which each engine appends its decision records; engine N above 0 appends `.N` to the name."""

    decision_steps: int = setting(0, ge=0)
    """Recent steps whose decision records are kept in memory for the route `decisions`. 0 disables them."""

    shadow_scheduler: PluginChoice | None = setting(None, group="plugins")
    """Scheduler that runs alongside the live one; its decisions are recorded and never applied."""

    shadow_policy: PluginChoice | None = setting(None, group="plugins")
    """Scheduling policy of the shadow scheduler instead of `scheduling_policy`; alone it shadows the live scheduler."""

    def uses(self, options: Mapping[str, Any]) -> list[tuple[Point, PluginChoice]]:
        return [(KINDS["scheduler"], self.shadow_scheduler)] if self.shadow_scheduler else []

    @property
    def has_shadow(self) -> bool:
        return bool(self.shadow_scheduler or self.shadow_policy)

    @property
    def is_on(self) -> bool:
        return bool(self.decision_log or self.decision_steps)


def log_of(path: str, engine_index: int) -> Path:
    """The file of one engine."""
    return Path(f"{path}.{engine_index}" if engine_index else path)
