"""Hook module `auto-scheduler`: a scheduler by the number of requests. Front end.

Passive unless `--scheduler auto-scheduler` selects it.
"""

from __future__ import annotations

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError
from tenonry.plugin.hookspecs import hookimpl

NAME = "auto-scheduler"
FEW = 4
MOST = 512


@hookimpl
def tenonry_get_scheduler(name: str, config: EngineConfig) -> str | None:
    """Name the class behind the scheduler `auto-scheduler`."""
    if name != NAME:
        return None
    if config.max_num_seqs < FEW:
        return "tenonry_scheduler_static:StaticScheduler"
    return "tenonry_scheduler_batching.scheduler:BatchingScheduler"


@hookimpl
def tenonry_configured(config: EngineConfig) -> None:
    """Reject the scheduler `auto-scheduler` for more requests than it was tested with."""
    if config.scheduler.name == NAME and config.max_num_seqs > MOST:
        raise ConfigError(
            f"scheduler '{NAME}' is for max_num_seqs up to {MOST}; choose another with --scheduler"
        )
