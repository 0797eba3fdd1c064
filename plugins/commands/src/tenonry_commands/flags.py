"""Flags of a model of settings: the kernel's, the server's, or those of a plugin, alike. Front end."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tenonry import config
from tenonry.config import PluginChoice, dtype_name, fact, plain_type
from tenonry.config.sources import variable_of
from tenonry.errors import ConfigError
from tenonry.plugin.checks import where
from tenonry_commands.setting_texts import setting_texts


def human_int(text: str) -> int:
    """Parse an integer as `tenonry.config.human_int`, with the error that a parser shows."""
    try:
        return config.human_int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_flags(
    parser: argparse.ArgumentParser,
    model: type[BaseModel],
    heading: str,
    names: Iterable[str] | None = None,
) -> None:
    """Add a flag per field, or for some `names`, under `heading` or the group that a field names.

    Raises ConfigError that names both owners of a flag that is there already.
    """
    texts = setting_texts(model)
    for name in model.model_fields if names is None else names:
        field = model.model_fields[name]
        if fact(field, "flag") is None:
            continue
        group = group_of(parser, fact(field, "group") or heading)
        try:
            action = _add_field(group, name, field, field.description or texts.get(name, ""))
        except argparse.ArgumentError as error:
            owner = owner_of(parser, flags_of(name, field))
            raise ConfigError(
                f"{heading} at {where(model)} and {owner} both claim a flag: {error.message}; rename it, or choose "
                "another plugin instead of one of them"
            ) from None
        action.owner = heading, model


def flags_of(name: str, field: FieldInfo) -> list[str]:
    """The flag of a field, and its alias."""
    flag = fact(field, "flag") or "--" + name.replace("_", "-")
    return [word for word in (flag, fact(field, "alias")) if word]


def owner_of(parser: argparse.ArgumentParser, flags: Iterable[str]) -> str:
    """The owner of the first of some flags that is there, with file and line."""
    known = parser._option_string_actions  # noqa: SLF001 - argparse offers no other way
    taken = next(known[flag] for flag in flags if flag in known)
    heading, model = getattr(taken, "owner", ("", None))
    return f"{heading} at {where(model)}" if model else "the command"


def group_of(parser: argparse.ArgumentParser, title: str) -> Any:
    """The group with this heading, made where it is new."""
    for group in parser._action_groups:  # noqa: SLF001 - argparse offers no other way
        if group.title == title:
            return group
    return parser.add_argument_group(title)


def _add_field(group: Any, name: str, field: FieldInfo, text: str) -> Any:
    kind = plain_type(field.annotation)
    note = f"{text} [default: {_default_text(field.default)}; env: {variable_of(name, field)}]"
    keywords: dict[str, Any] = {"dest": name, "default": None, "help": note.replace("%", "%%")}
    if kind is bool:
        keywords["action"] = argparse.BooleanOptionalAction
    elif get_origin(kind) is tuple:
        is_plugin = PluginChoice in get_args(kind)
        keywords["metavar"] = "NAME" if is_plugin else name.upper()
        if nargs := fact(field, "nargs"):
            keywords |= {"action": "extend", "nargs": nargs}
        else:
            keywords["action"] = "append"
    elif get_origin(kind) is Literal:
        keywords["choices"] = get_args(kind)
        if name == "dtype":
            keywords["type"] = dtype_name
    elif kind in (int, float):
        keywords["type"] = human_int if kind is int else float
        keywords["metavar"] = "N" if kind is int else "X"
    else:
        keywords["metavar"] = name.upper()
    return group.add_argument(*flags_of(name, field), **keywords)


def _default_text(default: Any) -> str:
    if isinstance(default, PluginChoice):
        return default.name
    return "none" if default in (None, (), "") else str(default)
