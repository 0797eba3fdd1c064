"""Fallbacks of plugins that repeatedly ended engines. Front end, and the top of a headless node."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tenonry.config import EngineConfig, PluginChoice
from tenonry.errors import ConfigError, PluginError
from tenonry.plugin.manager import PluginManager, part_settings
from tenonry.stats import RecoveryStats
from tenonry_recovery.settings import RecoverySettings

logger = logging.getLogger("tenonry.recovery")
MAX_FAULTS = 2  # of a plugin that has a fallback
NOTE = "fallback "  # in the titles of processes
KINDS = {"scheduler": "scheduler", "kv_connector": "KV connector"}
OFF = "off"  # the fallback of a KV connector that nothing takes the place of


def check_fallbacks(config: EngineConfig) -> None:
    """Raises ConfigError for one that could never be needed."""
    other = config.section(RecoverySettings).fallback_kv_connector
    if other is not None and config.kv_connector is None:
        raise ConfigError(
            f"fallback_kv_connector={other.name}: there is no KV connector to replace; give "
            f"--kv-connector, or leave it out"
        )


def fallbacks_of(config: EngineConfig, manager: PluginManager) -> dict[str, PluginChoice | None]:
    """Fallbacks of plugins that end engines, by kind; None: engines run without one. Raises if one cannot be used."""
    settings = config.section(RecoverySettings)
    chosen: dict[str, PluginChoice | None] = {
        "scheduler": settings.fallback_scheduler,
        "kv_connector": settings.fallback_kv_connector,
    }
    found: dict[str, PluginChoice | None] = {}
    for kind, other in chosen.items():
        if other is not None and other.name == OFF and kind == "kv_connector":
            found[kind] = None
        elif other is not None:
            manager.resolve(kind, other, with_choice(config, manager, {kind: other}))
            found[kind] = other
    return found


def with_choice(
    config: EngineConfig, manager: PluginManager, choices: Mapping[str, PluginChoice | None]
) -> EngineConfig:
    """The same with other plugins of some kinds, or without one, and without settings that these do not have."""
    names = [f"{KINDS[kind]} {choice.name if choice else OFF}" for kind, choice in choices.items()]
    others = [part for part in (config.process_note.removeprefix(NOTE), *names) if part]
    made = config.replaced(**choices, process_note=NOTE + ", ".join(others))
    try:
        parts = part_settings(manager.choose(made), made)
    except PluginError:  # the start reports it
        return made
    strays = (made.model_extra or {}).keys() - parts
    return EngineConfig.model_validate(made.model_dump(exclude_unset=True, exclude=strays))


def fall_back(
    config: EngineConfig, manager: PluginManager, kind: str, other: PluginChoice | None
) -> EngineConfig:
    """Return the same with another plugin of this kind, or without one, and log it."""
    logger.error(
        "the %s '%s' raised or violated its contract %d times: new engines use %s (--fallback-%s)",
        kind,
        getattr(config, kind).name,
        MAX_FAULTS,
        f"'{other.name}'" if other else "none",
        kind.replace("_", "-"),
    )
    return with_choice(config, manager, {kind: other})


def counted(kind: str) -> RecoveryStats:
    """Statistics of a fallback, for stat loggers."""
    if kind == "scheduler":
        return RecoveryStats(fallbacks=1)
    return RecoveryStats(connector_fallbacks=1)
