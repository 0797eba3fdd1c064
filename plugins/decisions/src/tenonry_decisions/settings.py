"""Settings of the call set `decisions`. Light: imported by the front end before anything starts."""

from __future__ import annotations

from pathlib import Path

from tenonry.config import setting
from tenonry.interfaces.plugin import PluginSettings


class DecisionSettings(PluginSettings):
    """Settings of the call set `decisions`."""

    decision_log: str | None = None
    """File to which each engine appends its decision records; engine N above 0 appends `.N` to the name."""

    decision_steps: int = setting(0, ge=0)
    """Recent steps whose decision records are kept in memory, for the route `decisions`. 0 keeps none."""

    @property
    def is_on(self) -> bool:
        return bool(self.decision_log or self.decision_steps)


def log_of(path: str, engine_index: int) -> Path:
    """The file of one engine."""
    return Path(f"{path}.{engine_index}" if engine_index else path)
