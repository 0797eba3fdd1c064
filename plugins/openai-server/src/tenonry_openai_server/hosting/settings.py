"""Settings of a server of several models, and the configuration of each model. Light; front end.

A model's own settings, under `models` in the file of `--config`, win over the common ones, flags included.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from pydantic import Field, field_validator

from tenonry.config import EngineConfig, Settings, setting
from tenonry.errors import ConfigError, TenonryError
from tenonry_commands.arguments import named_models, sources_from_arguments
from tenonry_commands.familiar_flags import translate
from tenonry_commands.flags import add_flags
from tenonry_commands.sources import Sources
from tenonry_openai_server.route_settings import route_settings
from tenonry_openai_server.settings import ServerConfig, engine_config, server_config

# Settings of the server that models may override.
OF_A_MODEL = frozenset(
    {"output_parser", "tool_call_parser", "reasoning_parser", "unknown_fields", "schema_keywords"}
)
# Settings that require a separate server.
OF_ONE_MODEL = (
    "api_server_count",
    "headless",
    "prefill_engines",
    "lora_folder",
    "front_end_profile_dir",
    "data_parallel_rank",
)


class HostConfig(Settings):
    """Settings of a server of several models."""

    models: dict[str, dict[str, Any]] = setting(
        {},
        flag=None,
        description="Models by name, each with settings that override the common ones.",
    )
    pin_model: tuple[str, ...] = Field(
        (), description="Model to load at startup and never unload; repeat for several."
    )
    max_loaded_models: int = Field(
        0, ge=0, le=1024, description="Maximum models loaded at a time. 0: as many as fit."
    )
    model_idle_timeout: float = Field(
        300.0,
        ge=0,
        le=1e9,
        description="Seconds without requests after which a model is unloaded. 0 disables "
        "unloading.",
    )
    model_memory_budget: int | None = Field(
        None,
        ge=1,
        description="Bytes for all loaded models, such as 24G. Defaults to the memory "
        "available at startup.",
    )
    model_wait_timeout: float = Field(
        60.0,
        ge=0,
        le=86400,
        description="Maximum seconds that a model waits for memory used by models with requests.",
    )
    max_load_queue: int = Field(
        256,
        ge=0,
        le=65536,
        description="Maximum requests waiting for a model to load. Further ones are rejected with 429.",
    )

    @field_validator("models", mode="before")
    @classmethod
    def _read_models(cls, value: Any) -> Any:
        """Accept a list of names, and names without settings; settings in the format of the file."""
        if isinstance(value, list | tuple):
            value = dict.fromkeys(value)
        if not isinstance(value, dict):
            return value
        return {str(name): _settings_of(name, given) for name, given in value.items()}


def _settings_of(name: Any, given: Any) -> dict[str, Any]:
    if not isinstance(given, dict | None):
        raise ConfigError(f"'{name}' must hold a mapping of settings, not a {type(given).__name__}")
    return translate({str(key).replace("-", "_"): value for key, value in (given or {}).items()})


class _AdapterObject(msgspec.Struct):
    """One of `lora_modules` as a JSON object; the worker reads its other fields."""

    name: str
    path: str


@dataclass(frozen=True)
class ModelSpec:
    """One model of several: its served names, of which the first is displayed, and its settings."""

    names: tuple[str, ...]
    config: EngineConfig
    settings: ServerConfig
    is_pinned: bool


@dataclass(frozen=True)
class Hosted:
    """All models of a server; the first one is the default."""

    specs: list[ModelSpec]
    settings: ServerConfig
    host: HostConfig


def add_host_arguments(parser: argparse.ArgumentParser) -> None:
    """A flag per field of HostConfig."""
    add_flags(parser, HostConfig, "several models")


def hosted_models(args: argparse.Namespace) -> Hosted | None:
    """Read the models of a multi-model server, from flags, environment and `--config`; None for at most one without
    settings of a host.

    Raises ConfigError.
    """
    sources = sources_from_arguments(args, ServerConfig, HostConfig)
    given = sources.values(HostConfig)
    named = named_models(args)
    if len(named) <= 1 and not given:
        return None
    host = sources.make(HostConfig)
    names = named or list(host.models) or _common_model(sources)
    server = server_config(sources)
    _check_common(sources, server, names)
    specs = [
        _spec(name, host, server, lambda own: engine_config(sources, server, args, **own))
        for name in names
    ]
    _check_names(specs, host)
    return Hosted(specs, server, host)


def _common_model(sources: Sources) -> list[str]:
    model = sources.values(EngineConfig).get("model")
    if model is None:
        raise ConfigError(
            "no model is named; type `tenonry serve MODEL …`, or list them under models: in the file of --config"
        )
    return [model]


def _check_common(sources: Sources, server: ServerConfig, names: list[str]) -> None:
    """Raise ConfigError for settings that several models cannot share."""
    _check_alone(server)
    engine = sources.values(EngineConfig)
    if len(names) > 1 and "served_model_name" in engine:
        raise ConfigError(
            f"served_model_name={engine['served_model_name']} names one of {len(names)} models; write the names under "
            "models: in the file of --config"
        )


def _check_alone(settings: Settings) -> None:
    """Raise ConfigError for a setting that requires a separate server."""
    fields = type(settings).model_fields
    for name in OF_ONE_MODEL:
        if name in fields and getattr(settings, name) != fields[name].default:
            raise ConfigError(
                f"{name}={getattr(settings, name)}: a server of several models has none; serve that model by a server "
                "of its own"
            )


def _spec(name: str, host: HostConfig, server: ServerConfig, configure: Any) -> ModelSpec:
    given = host.models.get(name, {})
    routes = route_settings(server, server.route).values()
    shared = {*ServerConfig.model_fields, *HostConfig.model_fields}
    shared.update(*(type(each).model_fields for each in routes))
    elsewhere = (given.keys() & shared) - OF_A_MODEL
    if elsewhere:
        raise ConfigError(
            f"models.{name}.{min(elsewhere)} is a setting of the whole server; write it outside of models"
        )
    own = {key: value for key, value in given.items() if key in OF_A_MODEL}
    others = {key: value for key, value in given.items() if key not in OF_A_MODEL}
    try:
        config: EngineConfig = configure({"model": name, **others})
        _check_alone(config)
        settings = server.replaced(**own) if own else server
    except (TenonryError, ValueError) as error:
        raise of_model(name, error) from None
    names = config.served_model_name or (name,)
    config = config.replaced(served_model_name=names, process_note=names[0])
    return ModelSpec(names, config, settings, any(each in host.pin_model for each in names))


def of_model(name: str, error: Exception) -> ConfigError:
    """The error with the name of a model, unless it begins with that."""
    prefix = f"model '{name}': "
    return ConfigError(prefix + str(error).removeprefix(prefix))


def _check_names(specs: list[ModelSpec], host: HostConfig) -> None:
    served = [name for spec in specs for name in spec.names]
    adapters = [name for spec in specs for name in declared_adapters(spec.config)]
    for name, count in Counter(served + adapters).items():
        if count > 1:
            raise ConfigError(
                f"the model name '{name}' is given {count} times; give each model and adapter a name of its own under "
                "models: in the file of --config"
            )
    for name in host.pin_model:
        if name not in served:
            raise ConfigError(
                f"pin_model={name}: no such model is served; served: {', '.join(served)}"
            )
    num_pinned = sum(spec.is_pinned for spec in specs)
    if host.max_loaded_models and num_pinned < len(specs) and num_pinned >= host.max_loaded_models:
        raise ConfigError(
            f"max_loaded_models={host.max_loaded_models} with {num_pinned} pinned models: the others could never be "
            f"loaded; give {num_pinned + 1} or more"
        )
    if num_pinned > (host.max_loaded_models or num_pinned):
        raise ConfigError(
            f"max_loaded_models={host.max_loaded_models} is below the {num_pinned} pinned models; give {num_pinned}"
        )


def declared_adapters(config: EngineConfig) -> Mapping[str, str]:
    """Paths of the adapters that a model's settings name, by the names that requests use.

    The worker checks them: one that is neither NAME=PATH nor an object with both is left to it.
    """
    modules = (config.model_extra or {}).get("lora_modules") or ()
    pairs = map(_adapter, [modules] if isinstance(modules, str) else modules)
    return dict(pair for pair in pairs if pair is not None)


def _adapter(module: Any) -> tuple[str, str] | None:
    """Name and path of one of `lora_modules`."""
    text = str(module)
    if text.startswith("{"):
        try:
            found = msgspec.json.decode(text, type=_AdapterObject)
        except msgspec.DecodeError:
            return None
        return found.name, found.path
    name, equals, path = text.partition("=")
    return (name, path) if equals else None
