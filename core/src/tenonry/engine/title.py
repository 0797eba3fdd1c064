"""What an engine's process is called where people look: in its title, which `tenonry ps` reads. Engine process."""

from __future__ import annotations

from setproctitle import setproctitle

from tenonry.config import EngineConfig
from tenonry.interfaces.launcher import FIRST_STANDBY, engine_name


def name_process(config: EngineConfig, index: int, epoch: int) -> None:
    """The number of its start is told of engines that were started after the first ones."""
    name = engine_name(index)
    if index < FIRST_STANDBY:
        name += f" epoch {epoch}"
        if config.scheduler == config.fallback_scheduler:
            name += f" fallback {config.scheduler.name}"
    setproctitle(f"tenonry: {name}")
