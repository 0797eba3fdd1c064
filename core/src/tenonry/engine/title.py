"""Title of an engine's process, which `tenonry ps` reads. Engine process."""

from __future__ import annotations

from collections.abc import Iterator

from setproctitle import setproctitle

from tenonry.config import EngineConfig
from tenonry.interfaces.launcher import FIRST_STANDBY, engine_name


def name_process(config: EngineConfig, index: int, epoch: int) -> None:
    """The number of its start is told of engines that were started after the first ones."""
    name = engine_name(index)
    if index < FIRST_STANDBY:
        name += f" epoch {epoch}"
        others = ", ".join(_fallbacks(config))
        if others:
            name += f" fallback {others}"
    setproctitle(f"tenonry: {name}")


def _fallbacks(config: EngineConfig) -> Iterator[str]:
    """The plugins that took the place of others."""
    if config.scheduler == config.fallback_scheduler:
        yield f"scheduler {config.scheduler.name}"
    other = config.fallback_kv_connector
    if other is not None and config.kv_connector in (None, other):
        yield f"KV connector {other.name}"
