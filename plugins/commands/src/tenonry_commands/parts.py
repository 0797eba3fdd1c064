"""Plugins that a command line chooses: read first, because they bring flags of their own. Front end."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from pydantic.fields import FieldInfo

from tenonry.config import EngineConfig, fact
from tenonry.errors import ConfigError, TenonryError
from tenonry.info import PluginRecord
from tenonry.interfaces.plugin import PluginSettings
from tenonry.plugin.manager import PluginManager, owners_of, part_settings, sections
from tenonry_commands.familiar_flags import TRANSLATIONS, add_familiar_flags, translate
from tenonry_commands.flags import add_flags, flags_of
from tenonry_commands.sources import Sources


@dataclass
class Parts:
    """Chosen plugins that have settings, all their settings by name, and why a plugin could not be read."""

    models: list[tuple[PluginRecord, type[PluginSettings]]] = field(default_factory=list)
    fields: dict[str, FieldInfo] = field(default_factory=dict)
    problem: str = ""

    def explain(self, flag: str) -> str:
        """Explain an unknown flag: the plugin that has it and is not chosen, or why a chosen one could not be read."""
        return self.problem or belongs(flag)


def belongs(word: str) -> str:
    """The message for a flag or key of installed plugins that are not chosen; empty if there is none."""

    def is_meant(name: str, field: FieldInfo) -> bool:
        flags = flags_of(name, field)
        return word in (name, *flags, flags[0].replace("--", "--no-", 1))

    owners = owners_of(is_meant)
    choices = [f"--{record.kind.replace('_', '-')} {record.name}" for record in owners]
    if not owners:
        return ""
    return f"{word} belongs to {owners[0].label()}; choose it with {' or '.join(choices)}"


class _UnreadableError(Exception):
    """The words are wrong; the parser that reads all of them reports it."""


class _FirstParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _UnreadableError(message)


def chosen_parts(words: Sequence[str], file: str | None) -> Parts:
    """The plugins that flags, variables and a file choose.

    Settings may choose further plugins, so words are read until no new ones are found. Raises ConfigError where two
    plugins claim a setting.
    """
    parts = Parts()
    while True:
        config = _first_look(words, file, parts)
        try:
            manager = PluginManager(config.plugins)
            owned = [*sections(manager.choose(config), config)]
        except TenonryError as error:  # the start reports it
            parts.problem = str(error)
            return parts
        fields = part_settings([record for record, _ in owned], config)
        models = {model: record for record, model in reversed(owned)}
        found = [(record, model) for model, record in reversed(models.items())]
        found = [(record, model) for record, model in found if model.model_fields]
        if len(found) <= len(parts.models):
            return parts
        parts = Parts(found, fields)


class PartFlags:
    """Adds the flags of chosen plugins to a parser before it parses the words that choose them."""

    def __init__(
        self, parser: argparse.ArgumentParser, add: Callable[[Parts], None], file: str | None = None
    ) -> None:
        self._add, self._file = add, file
        self._parse = parser.parse_known_args
        self._parts: Parts | None = None
        vars(parser).update(parse_known_args=self.parse, part_flags=self)

    def add(self, words: Sequence[str] = ()) -> Parts:
        """Add them, once. Raises ConfigError where two plugins claim a flag or a setting."""
        if self._parts is None:
            self._parts = chosen_parts(words, self._file)
            self._add(self._parts)
        return self._parts

    def parse(
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As the method of the parser. Raises ConfigError for a flag of a plugin that is not chosen."""
        words = sys.argv[1:] if args is None else [*args]
        parts = self.add(words)
        found, unknown = self._parse(words, namespace)
        for word in unknown:
            if word.startswith("-") and (text := parts.explain(word.partition("=")[0])):
                raise ConfigError(text)
        return found, unknown


def _first_look(words: Sequence[str], file: str | None, parts: Parts) -> EngineConfig:
    """The configuration as far as kernel and known parts read it; the defaults where it cannot be read."""
    parser = _FirstParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", default=file)
    with contextlib.suppress(ConfigError):  # the other parser reports flags that are claimed twice
        add_flags(parser, EngineConfig, "engine")
        add_part_flags(parser, parts)
    add_familiar_flags(parser)
    try:
        given = vars(parser.parse_known_args(list(words))[0])
        path = given.pop("config")
        del given[TRANSLATIONS]
        flags = {name: value for name, value in given.items() if value is not None}
        sources = Sources(
            {"model": "-", **flags}, EngineConfig, file=path, translate=translate, parts=None
        )
        return sources.make(EngineConfig)
    except (_UnreadableError, ConfigError):
        return EngineConfig(model="-")


def add_part_flags(
    parser: argparse.ArgumentParser, parts: Parts, *, replaceable: bool = False
) -> list[str]:
    """Add the flags of chosen plugins, each under its own heading; returns the settings that have one."""
    added: dict[str, None] = {}
    for record, model in parts.models:
        origin = record.distribution or record.path or record.target
        heading = f"{record.kind.replace('_', ' ')} {record.name} ({origin})"
        names = [
            name
            for name, field in model.model_fields.items()
            if name not in added and (fact(field, "replaceable") or not replaceable)
        ]
        add_flags(parser, model, heading, names)
        added |= dict.fromkeys(names)
    return [*added]
