"""Command-line flags of an engine, generated from `EngineConfig`: one model for flags, environment, YAML and docs.

Used by every verb that starts an engine. Flags keep the names that users of vLLM type from memory.
"""

from __future__ import annotations

import argparse
import types
import typing
from typing import Any, Literal, get_args, get_origin

from tenonry.config import ENV_PREFIX, EngineConfig, PluginChoice, make_config
from tenonry.errors import ConfigError

ALIASES: dict[str, tuple[str, ...]] = {
    "tensor_parallel_size": ("-tp",),
    "pipeline_parallel_size": ("-pp",),
    "data_parallel_size": ("-dp",),
    "scheduler": ("--scheduler-cls",),
    "executor": ("--distributed-executor-backend",),
}
GROUPS: dict[str, tuple[str, ...]] = {
    "plugins": (
        "executor", "scheduler", "scheduling_policy", "worker", "launcher", "io_processor", "kv_connector",
        "stat_loggers", "attention_backend",
    ),
    "parallelism": ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"),
}  # fmt: skip
SKIPPED = {"model", "plugins"}  # positional, and spelt --allow-plugin / --disable-plugin
SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def human_int(text: str) -> int:
    """An integer, or one with k, m, g (powers of 1000) or K, M, G (powers of 1024): 25.6k, 32K."""
    try:
        if text and text[-1] in SUFFIXES:
            return int(float(text[:-1]) * SUFFIXES[text[-1]])
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not an integer (32768, 25.6k and 32K are)") from None


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
    for kind in ("executor", "scheduler", "scheduling-policy", "worker", "io-processor", "kv-connector", "launcher"):
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
    kind = _plain_type(field.annotation)
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


def _plain_type(annotation: Any) -> Any:
    """The one type behind `X | None`."""
    if get_origin(annotation) in (typing.Union, types.UnionType):
        inner = [part for part in get_args(annotation) if part is not type(None)]
        return inner[0]
    return annotation


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
    _merge_options(values, given)
    policy = {"allow": given.get("allow_plugin"), "disable": given.get("disable_plugin") or ()}
    if policy["allow"] or policy["disable"]:
        values["plugins"] = policy
    return make_config({**values, **overrides})


def _merge_options(values: dict[str, Any], given: dict[str, Any]) -> None:
    for field in ("executor", "scheduler", "scheduling_policy", "worker", "io_processor", "kv_connector", "launcher"):
        options = parse_options(given.get(f"{field}_option") or (), f"--{field.replace('_', '-')}-option")
        if options:
            default = EngineConfig.model_fields[field].default
            name = values.get(field) or (default.name if default else None)
            if name is None:
                raise ConfigError(f"--{field.replace('_', '-')}-option needs --{field.replace('_', '-')}")
            values[field] = {"name": name, "options": options}
    loggers = parse_options(given.get("stat_logger_option") or (), "--stat-logger-option")
    names = list(values.get("stat_loggers") or ())
    for key in loggers:
        if key.partition(".")[0] not in names:
            raise ConfigError(f"--stat-logger-option {key}: no --stat-logger is called '{key.partition('.')[0]}'")
    if loggers:
        values["stat_loggers"] = [
            {
                "name": name,
                "options": {k.partition(".")[2]: v for k, v in loggers.items() if k.partition(".")[0] == name},
            }
            for name in names
        ]


def parse_options(texts: typing.Iterable[str], flag: str) -> dict[str, Any]:
    """`key=value` texts as a dict; values are read as YAML scalars. Raises ConfigError."""
    import yaml

    options = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"{flag} '{text}' must look like key=value")
        options[key] = yaml.safe_load(value) if value else ""
    return options
