"""Fallbacks of plugins that repeatedly ended engines. Front end, and the top of a headless node."""

from __future__ import annotations

import logging

from tenonry.config import EngineConfig, PluginChoice
from tenonry.errors import ConfigError
from tenonry.plugin.manager import PluginManager
from tenonry.stats import RecoveryStats

logger = logging.getLogger("tenonry.recovery")
MAX_FAULTS = 2  # of a plugin that has a fallback
OFF = "off"  # the fallback of a KV connector that nothing takes the place of


def check_fallbacks(config: EngineConfig) -> None:
    """Raises ConfigError for one that could never be needed."""
    other = config.fallback_kv_connector
    if other is not None and config.kv_connector is None:
        raise ConfigError(
            f"fallback_kv_connector={other.name}: there is no KV connector that it could take the place of; give "
            "--kv-connector, or leave it out"
        )


def fallbacks_of(config: EngineConfig, manager: PluginManager) -> dict[str, PluginChoice | None]:
    """Fallbacks of plugins that end engines, by kind; None: engines run without one. Raises if one cannot be used."""
    chosen: dict[str, PluginChoice | None] = {
        "scheduler": config.fallback_scheduler,
        "kv_connector": config.fallback_kv_connector,
    }
    found: dict[str, PluginChoice | None] = {}
    for kind, other in chosen.items():
        if other is not None and other.name == OFF and kind == "kv_connector":
            found[kind] = None
        elif other is not None:
            manager.resolve(kind, other, config.replaced(**{kind: other}))
            found[kind] = other
    return found


def fall_back(config: EngineConfig, kind: str, other: PluginChoice | None) -> EngineConfig:
    """The same with another plugin of this kind, or without one, as the log then says."""
    logger.error(
        "the %s '%s' raised or broke its contract %d times: engines that are started from now on use %s "
        "(--fallback-%s)",
        kind,
        getattr(config, kind).name,
        MAX_FAULTS,
        f"'{other.name}'" if other else "none",
        kind.replace("_", "-"),
    )
    return config.replaced(**{kind: other})


def counted(kind: str) -> RecoveryStats:
    """Statistics of a fallback, for stat loggers."""
    if kind == "scheduler":
        return RecoveryStats(fallbacks=1)
    return RecoveryStats(connector_fallbacks=1)
