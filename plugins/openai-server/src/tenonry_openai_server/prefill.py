"""`--prefill-engines`: its effects on the engine's configuration. Light; front end."""

from __future__ import annotations

from tenonry.config import EngineConfig, PluginChoice
from tenonry.errors import ConfigError

CONNECTOR = "peer"
BALANCER = "prefill-decode"


def paired(config: EngineConfig, engines: int) -> EngineConfig:
    """Configuration with the connector and the load balancer that prefill engines need. Raises ConfigError."""
    if engines >= config.data_parallel_size:
        raise ConfigError(
            f"prefill_engines={engines} of data_parallel_size={config.data_parallel_size} leaves no engine that "
            f"decodes; give --data-parallel-size {engines + 1} or more"
        )
    if config.data_parallel_size_local not in (None, config.data_parallel_size):
        raise ConfigError(
            "prefill_engines needs all engines on this node; leave out --data-parallel-size-local"
        )
    balancer = config.load_balancer
    options = {"prefill_engines": engines, "balancer": balancer.name, "options": balancer.options}
    return config.replaced(
        kv_connector=_with_peer(config.kv_connector),
        load_balancer=PluginChoice(name=BALANCER, options=options),
    )


def _with_peer(choice: PluginChoice | None) -> PluginChoice:
    if choice is None:
        return PluginChoice(name=CONNECTOR)
    members = choice.options.get("connectors", ())
    names = members.split(",") if isinstance(members, str) else members
    if choice.name != CONNECTOR and CONNECTOR not in names:
        raise ConfigError(
            f"prefill_engines needs the KV connector '{CONNECTOR}', and --kv-connector is '{choice.name}'; leave it "
            f"out, or give --kv-connector chain with {CONNECTOR} among its connectors"
        )
    return choice
