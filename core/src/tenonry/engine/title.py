"""Title of an engine's process, which `tenonry ps` reads. Engine process."""

from __future__ import annotations

from collections.abc import Iterator

from setproctitle import setproctitle

from tenonry.config import EngineConfig
from tenonry.interfaces.launcher import engine_name


def name_process(config: EngineConfig, index: int, epoch: int) -> None:
    """For an engine that was started after the first ones: with the number of its start."""
    others = ", ".join(_fallbacks(config))
    fallback = f" fallback {others}" if others else ""
    setproctitle(f"tenonry: {engine_name(index)} epoch {epoch}{fallback}")


def _fallbacks(config: EngineConfig) -> Iterator[str]:
    """The plugins that took the place of others."""
    if config.scheduler == config.fallback_scheduler:
        yield f"scheduler {config.scheduler.name}"
    other = config.fallback_kv_connector
    if other is not None and config.kv_connector in (None, other):
        yield f"KV connector {other.name}"
