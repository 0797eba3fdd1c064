"""Plugins that a command line chooses: found first, because they bring flags of their own. Front end."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from pydantic.fields import FieldInfo

from tenonry.config import EngineConfig, fact
from tenonry.errors import ConfigError, TenonryError
from tenonry.info import PluginRecord
from tenonry.interfaces.plugin import PluginSettings
from tenonry.plugin.kinds import SETTINGS
from tenonry.plugin.manager import PluginManager, merged, owners_of, sections
from tenonry_commands.flags import add_flags, flags_of
from tenonry_commands.import_watch import StartWatch
from tenonry_commands.start_flags import run_start_flags

HELP = {"-h", "--help"}
Model = tuple[PluginRecord, type[PluginSettings]]


@dataclass
class Parts:
    """Chosen plugins, all their settings by name, and why a plugin could not be read."""

    models: list[Model] = field(default_factory=list)
    fields: dict[str, FieldInfo] = field(default_factory=dict)
    problem: str = ""

    def explain(self, flag: str) -> str:
        """Explain an unknown flag: the plugin that has it and is not chosen, or why a chosen one could not be read."""
        return self.problem or belongs(flag)


def belongs(word: str) -> str:
    """The message for a flag or key of plugins that are not chosen or not installed; empty if there is none."""

    def is_meant(name: str, field: FieldInfo) -> bool:
        flags = flags_of(name, field)
        return word in (name, *flags, flags[0].replace("--", "--no-", 1))

    owners = owners_of(is_meant)
    choices = [f"--{record.kind.replace('_', '-')} {record.name}" for record in owners]
    if not owners:
        name = word.removeprefix("--").removeprefix("no-").replace("-", "_")
        package = SETTINGS.provider.get(name)
        return f"{word} comes with: pip install {package}" if package else ""
    return f"{word} belongs to {owners[0].label()}; choose it with {' or '.join(choices)}"


class _UnreadableError(Exception):
    """The words are wrong; the parse that follows reports it."""


def _leave(message: str) -> NoReturn:
    raise _UnreadableError(message)


class _Partial(argparse.Namespace):
    """Values of the flags that are known so far; any other setting is None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)


class PartFlags:
    """Adds the flags of chosen plugins to a parser before it parses the words that choose them.

    Flags of the kernel choose plugins, whose own flags may choose further ones, so the words are read as often. `look`:
    makes a configuration of a namespace. `added`: called with each plugin's settings. `replaceable`: only settings that
    can change while engines are replaced have a flag.
    """

    def __init__(
        self,
        parser: argparse.ArgumentParser,
        look: Callable[[argparse.Namespace], EngineConfig],
        added: Callable[[dict[str, FieldInfo]], None],
        *,
        replaceable: bool = False,
    ) -> None:
        self._parser, self._look, self._added = parser, look, added
        self._is_partial = replaceable
        self._parse = parser.parse_known_args
        self._parts: Parts | None = None
        vars(parser).update(parse_known_args=self.parse, part_flags=self)

    def add(self, words: Sequence[str] = ()) -> Parts:
        """Add them, once. Raises ConfigError where two plugins claim a flag or a setting."""
        if self._parts is None:
            self._parts = Parts()
            with StartWatch() as watch:
                known = [word for word in words if word not in HELP]
                for each in self._chosen(self._parts, known, watch):
                    self._add_flags(self._parts, each)
        return self._parts

    def parse(
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As the method of the parser. Raises ConfigError for a flag of a plugin that is not chosen."""
        words = run_start_flags(sys.argv[1:] if args is None else [*args])
        parts = self.add(words)
        found, unknown = self._parse(words, namespace)
        for word in unknown:
            if word.startswith("-") and (text := parts.explain(word.partition("=")[0])):
                raise ConfigError(text)
        return found, unknown

    def _chosen(self, parts: Parts, words: list[str], watch: StartWatch) -> Iterator[Model]:
        """The plugins that the words choose, as far as the flags are known, with their settings."""
        try:
            config = self._config(words)
            records = PluginManager(config.plugins).choose(config)
            yield from sections(records, lambda: self._config(words))
        except TenonryError as error:  # the start reports it
            watch.failed(error)
            parts.problem = str(error)

    def _config(self, words: list[str]) -> EngineConfig:
        known = _Partial()
        vars(self._parser)["error"] = _leave
        try:
            self._parse(words, known)
        except _UnreadableError:
            pass
        finally:
            del vars(self._parser)["error"]
        return self._look(known)

    def _add_flags(self, parts: Parts, new: Model) -> None:
        """Add the flags of settings that no plugin before has, under its own heading."""
        known = parts.fields.keys()
        parts.models.append(new)
        parts.fields = merged(parts.models)
        added = {
            name: each
            for name, each in parts.fields.items()
            if name not in known and (fact(each, "replaceable") or not self._is_partial)
        }
        self._added(added)
        record, model = new
        origin = record.distribution or record.path or record.target
        add_flags(
            self._parser, model, f"{record.kind.replace('_', ' ')} {record.name} ({origin})", added
        )
