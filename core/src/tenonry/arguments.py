"""Command-line flags of an engine, generated from `EngineConfig`: one model for flags, environment, YAML and docs.

Used by every verb that starts an engine. Flags keep the names that users of vLLM type from memory.
"""

from __future__ import annotations

import argparse
import typing
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError

from tenonry import config
from tenonry.config import (
    ENV_PREFIX,
    EngineConfig,
    PluginChoice,
    build_config,
    explain,
    merge_sources,
    plain_type,
    read_yaml,
)
from tenonry.errors import ConfigError

ALIASES: dict[str, tuple[str, ...]] = {
    "tensor_parallel_size": ("-tp",),
    "pipeline_parallel_size": ("-pp",),
    "data_parallel_size": ("-dp",),
    "data_parallel_size_local": ("-dpl",),
    "data_parallel_rank": ("-dpn",),
    "data_parallel_start_rank": ("-dpr",),
    "data_parallel_address": ("-dpa",),
    "data_parallel_rpc_port": ("-dpp",),
    "scheduler": ("--scheduler-cls",),
    "executor": ("--distributed-executor-backend",),
}
GROUPS: dict[str, tuple[str, ...]] = {
    "plugins": (
        "executor", "scheduler", "scheduling_policy", "worker", "launcher", "io_processor", "kv_connector",
        "stat_loggers", "attention_backend",
    ),
    "parallelism": (
        "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "data_parallel_size_local",
        "data_parallel_start_rank", "data_parallel_rank", "data_parallel_address", "data_parallel_rpc_port",
        "data_parallel_sync_steps", "load_balancing", "auth_key_file",
    ),
}  # fmt: skip
WITH_OPTIONS = ("executor", "scheduler", "scheduling_policy", "worker", "io_processor", "kv_connector", "launcher")
SKIPPED = {"model", "plugins"}  # positional, and spelt --allow-plugin / --disable-plugin


def human_int(text: str) -> int:
    """As `tenonry.config.human_int`, with the error that a parser shows."""
    try:
        return config.human_int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_engine_arguments(parser: argparse.ArgumentParser, *, model_positional: bool = True) -> None:
    """Add MODEL (or only `--model`), `--config` and a flag per field of EngineConfig."""
    if model_positional:
        parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="Folder, hub id or registered name.")
    parser.add_argument("--model", default=None, help="The same as MODEL.")
    parser.add_argument("--config", default=None, metavar="FILE", help="YAML file of settings; flags win over it.")
    engine = parser.add_argument_group("engine")
    groups = {title: parser.add_argument_group(title) for title in GROUPS}
    owner = {name: groups[title] for title, names in GROUPS.items() for name in names}
    for name in EngineConfig.model_fields:
        if name not in SKIPPED:
            _add_field(owner.get(name, engine), name)
    options = groups["plugins"]
    for field in WITH_OPTIONS:
        kind = field.replace("_", "-")
        options.add_argument(
            f"--{kind}-option", action="append", metavar="KEY=VALUE", default=None, help=f"Option of the {kind}."
        )
    options.add_argument(
        "--stat-logger-option", action="append", metavar="NAME.KEY=VALUE", default=None, help="Option of a stat logger."
    )
    options.add_argument("--allow-plugin", action="append", metavar="NAME", help="Only these hook modules are active.")
    options.add_argument("--disable-plugin", action="append", metavar="NAME", help="This hook module is not active.")


def _add_field(group: Any, name: str) -> None:
    field = EngineConfig.model_fields[name]
    flag = "--" + name.replace("_", "-")
    kind = plain_type(field.annotation)
    note = f"{field.description} [default: {_default_text(field.default)}; env: {ENV_PREFIX}{name.upper()}]"
    keywords: dict[str, Any] = {"dest": name, "default": None, "help": note.replace("%", "%%")}
    if kind is bool:
        keywords["action"] = argparse.BooleanOptionalAction
    elif name == "stat_loggers":
        keywords |= {"action": "append", "metavar": "NAME"}
        group.add_argument("--stat-logger", flag, **keywords)
        return
    elif name == "served_model_name":
        keywords |= {"nargs": "+", "metavar": "NAME"}
    elif get_origin(kind) is Literal:
        keywords["choices"] = get_args(kind)
    elif kind in (int, float):
        keywords["type"] = human_int if kind is int else float
        keywords["metavar"] = "N" if kind is int else "X"
    else:
        keywords["metavar"] = name.upper()
    group.add_argument(flag, *ALIASES.get(name, ()), **keywords)


def _default_text(default: Any) -> str:
    return default.name if isinstance(default, PluginChoice) else "none" if default in (None, ()) else str(default)


def config_from_arguments(args: argparse.Namespace, **overrides: Any) -> EngineConfig:
    """The EngineConfig that the parsed flags, the environment and `--config` describe. Raises ConfigError."""
    given = vars(args)
    values: dict[str, Any] = {
        name: given[name] for name in EngineConfig.model_fields if given.get(name) is not None and name not in SKIPPED
    }
    model = given.get("model_tag") or given.get("model")
    if model:
        values["model"] = model
    values["config"] = given.get("config")
    policy = {"allow": given.get("allow_plugin"), "disable": given.get("disable_plugin") or ()}
    if policy["allow"] or policy["disable"]:
        values["plugins"] = policy
    merged = merge_sources(values)
    for field in WITH_OPTIONS:
        _merge_options(merged, field, given.get(f"{field}_option") or ())
    _merge_logger_options(merged, given.get("stat_logger_option") or ())
    return build_config({**merged, **overrides})


def _merge_options(values: dict[str, Any], field: str, texts: typing.Iterable[str]) -> None:
    """Options from flags join those of the plugin that any source chose."""
    flag = f"--{field.replace('_', '-')}"
    options = parse_options(texts, f"{flag}-option")
    if options:
        chosen = values.get(field, EngineConfig.model_fields[field].default)
        if chosen in (None, "none"):
            raise ConfigError(f"{flag}-option needs {flag}")
        values[field] = _with_options(chosen, options)


def _merge_logger_options(values: dict[str, Any], texts: typing.Iterable[str]) -> None:
    flag = "--stat-logger-option"
    options = parse_options(texts, flag)
    if not options:
        return
    loggers = [_with_options(chosen, {}) for chosen in _as_list(values.get("stat_loggers"))]
    by_name = {chosen["name"]: chosen for chosen in loggers}
    for key, value in options.items():
        name, _, option = key.partition(".")
        if name not in by_name or not option:
            raise ConfigError(f"{flag} {key}: no --stat-logger is called '{name}'; write NAME.key=value")
        by_name[name]["options"][option] = value
    values["stat_loggers"] = loggers


def _as_list(chosen: Any) -> list[Any]:
    if isinstance(chosen, str):
        return [part.strip() for part in chosen.split(",")]
    return [chosen] if isinstance(chosen, dict) else list(chosen or ())


def _with_options(chosen: Any, options: dict[str, Any]) -> dict[str, Any]:
    """A plugin choice in any of its forms as {name, options}. Raises ConfigError for what is none."""
    if isinstance(chosen, str):
        return {"name": chosen, "options": options}
    try:
        made = PluginChoice.model_validate(chosen)
    except ValidationError as error:
        raise ConfigError(explain(error)) from None
    return {"name": made.name, "options": {**made.options, **options}}


def parse_options(texts: typing.Iterable[str], flag: str) -> dict[str, Any]:
    """`key=value` texts as a dict; values are read as YAML scalars. Raises ConfigError."""
    options = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"{flag} '{text}' must look like key=value")
        options[key] = read_yaml(value, f"{flag} '{text}'") if value else ""
    return options
