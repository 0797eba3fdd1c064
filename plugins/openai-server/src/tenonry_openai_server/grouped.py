"""`--data-parallel-rank` with engines that step together: one server for each engine. Light; front end."""

from __future__ import annotations

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError


def is_grouped(config: EngineConfig) -> bool:
    """Return True if the engine of this server runs in lockstep with those of other servers."""
    is_spread = config.enable_expert_parallel and config.data_parallel_size > 1
    return is_spread and config.data_parallel_rank is not None


def check_grouped(config: EngineConfig, api_server_count: int, prefill_engines: int) -> None:
    """Raise ConfigError for settings that a server with one engine of a group does not support."""
    if not is_grouped(config):
        return
    if api_server_count > 1:
        raise ConfigError(
            f"api_server_count={api_server_count} with data_parallel_rank={config.data_parallel_rank} and "
            "enable_expert_parallel: each engine has one server of its own; leave out --api-server-count, or have one "
            "server with all engines, without --data-parallel-rank"
        )
    if prefill_engines:
        raise ConfigError(
            f"prefill_engines={prefill_engines} with data_parallel_rank={config.data_parallel_rank}: this server has "
            "one engine; leave one of them out"
        )
