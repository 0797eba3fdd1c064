"""Expert parallelism across engines: validation of its settings, and rendezvous of the engines' ranks. Front end, at
start.

On one node the rendezvous is a file named by the front end. Across nodes it is a port of engine 0's node, which only
the user can choose, since no process of another node may bind it.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError
from tenonry.plugin.manager import PluginManager
from tenonry.plugin.plan import load_class


def is_spread(config: EngineConfig) -> bool:
    """Return True if the expert layers span the ranks of several engines, which then step in lockstep."""
    return config.enable_expert_parallel and config.data_parallel_size > 1


def check_rendezvous(config: EngineConfig) -> None:
    """Raises ConfigError for a rendezvous that cannot be one, that nothing uses, or that is missing."""
    given = config.expert_rendezvous
    if is_spread(config) and config.data_parallel_rank is not None:
        raise ConfigError(
            f"enable_expert_parallel: the engines step together, and data_parallel_rank={config.data_parallel_rank} "
            "is one of them; only `tenonry serve`, without --headless, joins such engines. Leave it out elsewhere"
        )
    if given and not is_spread(config):
        raise ConfigError(
            f"expert_rendezvous={given}: only engines that share experts meet there; add --enable-expert-parallel and "
            "a --data-parallel-size above 1, or leave it out"
        )
    if given and not _is_tcp(given):
        raise ConfigError(
            f"expert_rendezvous={given}: it must be tcp://HOST:PORT, with the address of engine 0's node and a port "
            "that is free there, 1 to 65535"
        )
    if is_spread(config) and not given and _has_several_nodes(config):
        raise ConfigError(
            "enable_expert_parallel over several nodes: the engines' ranks need a place to meet; add "
            "--expert-rendezvous tcp://HOST:PORT, with the address of engine 0's node and a port that is free there"
        )


def _is_tcp(text: str) -> bool:
    try:
        url = urlsplit(text)
        return bool(url.scheme == "tcp" and url.hostname and url.port) and url.path == ""
    except ValueError:  # no port, or an address in broken brackets
        return False


def _has_several_nodes(config: EngineConfig) -> bool:
    """Seen from the first node; the others receive the rendezvous from it."""
    local = config.data_parallel_size_local
    launcher = PluginManager(config.plugins).resolve("launcher", config.launcher, config)
    if not load_class(launcher).is_local:
        return True
    return (
        local is not None
        and local < config.data_parallel_size
        and not config.data_parallel_start_rank
    )
