"""Hook module `mp`: without a configured executor, several ranks run in separate processes. Front end."""

from __future__ import annotations

from tenonry.config import EngineConfig
from tenonry.plugin.hookspecs import hookimpl


@hookimpl(trylast=True)
def tenonry_get_executor(config: EngineConfig) -> str | None:
    """Name the executor that replaces the default one, which has one rank."""
    if config.world_size == 1 or "executor" in config.model_fields_set:
        return None
    return "tenonry_executor_multiproc.executor:MultiprocExecutor"
