"""Settings of the engine recovery `resume`. Light: imported by the front end before anything starts."""

from __future__ import annotations

from typing import Literal

from tenonry.config import PluginChoice, setting
from tenonry.interfaces.plugin import PluginSettings


class RecoverySettings(PluginSettings):
    """Settings of the engine recovery `resume`."""

    engine_death: Literal["restart", "stop"] = "restart"
    """On engine failure: `restart` and resume its streams, or `stop` and fail them."""
    fallback_scheduler: PluginChoice | None = setting(None, group="plugins", replaceable=True)
    """Fallback scheduler after the selected one raised or violated its contract twice."""
    fallback_kv_connector: PluginChoice | None = setting(None, group="plugins")
    """Fallback KV connector after the selected one raised twice; off disables it."""
    standby_engines: int = setting(0, ge=0, le=64, replaceable=True)
    """Hot standby engines for immediate failover. Each uses a full engine's memory."""
