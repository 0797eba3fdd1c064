"""Command-line flags of an engine, generated from `EngineConfig` and the settings of the chosen plugins: one model for
flags, environment, YAML and docs.

Used by every verb that starts an engine. Flags keep the names that users of vLLM type from memory.
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tenonry.config import EngineConfig, PluginChoice, fact, nearest, plain_type
from tenonry.config.sources import ENV_PREFIX, read_yaml
from tenonry.errors import ConfigError
from tenonry_commands.familiar_flags import check_translations, translate
from tenonry_commands.flags import add_flags, group_of
from tenonry_commands.parts import NO_PLUGINS, CommandPlugins, PartFlags, belongs
from tenonry_commands.sources import Sources
from tenonry_commands.start_flags import add_start_flags

# In the namespace: settings that flags set besides the kernel's, by name; those of the command's own plugins; these.
PARTS, OTHER_PARTS, OTHERS = "_parts", "_other_parts", "_others"


def add_engine_arguments(
    parser: argparse.ArgumentParser,
    *,
    model_positional: bool = True,
    several: bool = False,
    others: CommandPlugins = NO_PLUGINS,
) -> None:
    """Add MODEL (or only `--model`), `--config` and a flag per field of EngineConfig.

    `several`: MODEL may repeat. `others`: plugins of the command, whose settings have flags as well.
    """
    if model_positional:
        text = "Folder, hub id or registered name" + (
            "; several are loaded on request." * several or "."
        )
        parser.add_argument("model_tag", nargs="*" if several else "?", metavar="MODEL", help=text)
    parser.add_argument("--model", help="Same as MODEL.")
    variable = f"{ENV_PREFIX}CONFIG"
    note = f"YAML file of settings; flags and other variables win over it. [env: {variable}]"
    parser.add_argument("--config", metavar="FILE", default=os.environ.get(variable), help=note)
    add_flags(parser, EngineConfig, "engine")
    options = group_of(parser, "plugins")
    _add_options(options, EngineConfig.model_fields)
    help_ = "Option of a stat logger."
    options.add_argument(
        "--stat-logger-option", action="append", metavar="NAME.KEY=VALUE", help=help_
    )
    options.add_argument(
        "--allow-plugin",
        action="append",
        metavar="NAME",
        help="Hook modules to allow; all others are disabled.",
    )
    options.add_argument(
        "--disable-plugin", action="append", metavar="NAME", help="Hook module to disable."
    )
    add_start_flags(options)
    parser.set_defaults(**{OTHERS: others})
    add = functools.partial(_add_part_options, parser, options)
    PartFlags(parser, _first_look, add, others=others)


def add_setting_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each setting that can change while engines are replaced, and for the options of plugins."""
    known = EngineConfig.model_fields
    names = [name for name, field in known.items() if fact(field, "replaceable")]
    add_flags(parser, EngineConfig, "engine", names)
    add = functools.partial(_add_part_options, parser, parser)
    add({name: known[name] for name in names})
    PartFlags(parser, _first_look, add, replaceable=True)


def is_choice(field: FieldInfo) -> bool:
    """True for a setting that chooses one plugin."""
    return plain_type(field.annotation) is PluginChoice


def _add_options(group: Any, fields: Mapping[str, FieldInfo]) -> None:
    """Add a flag for the options of each plugin that these settings choose."""
    for name, field in fields.items():
        if is_choice(field):
            kind = name.replace("_", "-")
            text = f"Option of the {kind}."
            group.add_argument(f"--{kind}-option", action="append", metavar="KEY=VALUE", help=text)


def _add_part_options(
    parser: argparse.ArgumentParser,
    group: Any,
    fields: Mapping[str, FieldInfo],
    is_other: bool = False,
) -> None:
    """Add the flags for options of plugins that these settings choose, and let the namespace name the settings.

    `is_other`: they are those of a plugin of the command, which chooses none.
    """
    key = OTHER_PARTS if is_other else PARTS
    known = parser.get_default(key) or {}
    if not is_other:
        _add_options(group, {name: each for name, each in fields.items() if name not in known})
    parser.set_defaults(**{key: {**known, **fields}})


def _first_look(args: argparse.Namespace) -> EngineConfig:
    """The configuration by the flags that are known so far; the defaults where it cannot be read."""
    try:
        sources = partial_sources(args)
        values = {"model": "-"} | sources.values(EngineConfig)
        return with_options(sources.make(EngineConfig, values), args)
    except ConfigError:  # the start reports it
        return EngineConfig(model="-")


def sources_from_arguments(args: argparse.Namespace, *others: type[BaseModel]) -> Sources:
    """Values of EngineConfig and `others` from flags, environment and `--config`. Raises ConfigError."""
    check_translations(vars(args))
    sources = _sources(args, others)
    known = _names(args, others)
    points = vars(args).get(OTHERS, NO_PLUGINS).points
    for key in sources.values(EngineConfig).keys() - known:
        raise ConfigError(belongs(key, points) or f"unknown setting '{key}'{nearest(key, known)}")
    return sources


def partial_sources(args: argparse.Namespace, *others: type[BaseModel]) -> Sources:
    """As `sources_from_arguments`, before all flags and settings are known. Raises ConfigError."""
    return _sources(args, others, is_complete=False)


def _sources(
    args: argparse.Namespace, others: Sequence[type[BaseModel]], *, is_complete: bool = True
) -> Sources:
    given = vars(args)
    names = _names(args, others) - {"plugins"}
    flags = {name: given[name] for name in names if given.get(name) is not None}
    if len(models := named_models(args)) == 1:
        flags["model"] = models[0]
    allow = given.get("allow_plugin")
    disable = given.get("disable_plugin") or ()
    if allow or disable:
        flags["plugins"] = {"allow": allow, "disable": disable}
    return Sources(
        flags,
        EngineConfig,
        *others,
        file=given.get("config"),
        translate=translate,
        parts=(given.get(PARTS, {}), given.get(OTHER_PARTS, {})),
        is_complete=is_complete,
    )


def named_models(args: argparse.Namespace) -> list[str]:
    """Models that the command line names; of MODEL and `--model` the former."""
    given = vars(args)
    tags = given.get("model_tag") or given.get("model") or []
    return [tags] if isinstance(tags, str) else tags


def _names(args: argparse.Namespace, others: Sequence[type[BaseModel]]) -> set[str]:
    """All settings that are known."""
    models: list[type[BaseModel]] = [EngineConfig, *others]
    parts = [vars(args).get(key, {}) for key in (PARTS, OTHER_PARTS)]
    return set().union(*parts, *(model.model_fields for model in models))


def config_from_arguments(args: argparse.Namespace, **overrides: Any) -> EngineConfig:
    """The EngineConfig that the parsed flags, the environment and `--config` describe. Raises ConfigError."""
    sources = sources_from_arguments(args)
    made = sources.make(EngineConfig, sources.values(EngineConfig) | overrides)
    return with_options(made, args)


def with_options(made: EngineConfig, args: argparse.Namespace) -> EngineConfig:
    """Settings with the plugin options of the flags, whichever source chose the plugins. Raises ConfigError."""
    given = vars(args)
    changes: dict[str, Any] = {}
    for name, field in {**EngineConfig.model_fields, **given.get(PARTS, {})}.items():
        flag = f"--{name.replace('_', '-')}"
        if options := parse_options(given.get(f"{name}_option") or (), f"{flag}-option"):
            chosen = getattr(made, name, field.default)
            if chosen is None:
                raise ConfigError(f"{flag}-option needs {flag}")
            changes[name] = _joined(PluginChoice.model_validate(chosen), options)
    if texts := given.get("stat_logger_option"):
        changes["stat_loggers"] = _loggers_with_options(made.stat_loggers, texts)
    return made.replaced(**changes) if changes else made


def _loggers_with_options(
    chosen: Sequence[PluginChoice], texts: Iterable[str]
) -> list[PluginChoice]:
    flag = "--stat-logger-option"
    options: dict[str, dict[str, Any]] = {logger.name: {} for logger in chosen}
    for key, value in parse_options(texts, flag).items():
        owners = [name for name in options if key[:-1].startswith(f"{name}.")]
        if not owners:
            names = ", ".join(options) or "none is chosen"
            raise ConfigError(
                f"{flag} {key}: write NAME.key=value; NAME is a --stat-logger: {names}"
            )
        name = max(owners, key=len)
        options[name][key[len(name) + 1 :]] = value
    return [_joined(logger, options[logger.name]) for logger in chosen]


def _joined(chosen: PluginChoice, options: dict[str, Any]) -> PluginChoice:
    return PluginChoice(name=chosen.name, options=chosen.options | options)


def parse_options(texts: Iterable[str], flag: str) -> dict[str, Any]:
    """`key=value` texts as a dict; values are read as YAML scalars. Raises ConfigError."""
    options = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"{flag} '{text}' must look like key=value")
        options[key] = read_yaml(value, f"{flag} '{text}'") if value else ""
    return options
