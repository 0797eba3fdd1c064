"""Plugins chosen by a command line: resolved first, because they bring flags. Front end."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from pydantic.fields import FieldInfo

from tenonry.config import EngineConfig, fact
from tenonry.errors import ConfigError, TenonryError
from tenonry.info import PluginRecord
from tenonry.interfaces.plugin import PluginSettings
from tenonry.plugin import Point
from tenonry.plugin.kinds import KINDS, SETTINGS
from tenonry.plugin.manager import PluginManager, merged, owners_of, sections
from tenonry_commands.deprecations import warn_of_deprecations
from tenonry_commands.flags import add_flags, flags_of
from tenonry_commands.import_watch import StartWatch
from tenonry_commands.pth_files import warn_of_pth_files
from tenonry_commands.start_flags import run_start_flags

HELP = {"-h", "--help"}
Model = tuple[PluginRecord, type[PluginSettings]]


@dataclass
class Parts:
    """Chosen plugins, all their settings by name, and why a plugin could not be read."""

    models: list[Model] = field(default_factory=list)
    fields: dict[str, FieldInfo] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True)
class CommandPlugins:
    """Plugins that a command uses in addition to those of the engine.

    `chosen`: their records, by the flags that are known so far. Raises TenonryError.
    """

    points: tuple[Point, ...] = ()
    chosen: Callable[[argparse.Namespace], Iterable[PluginRecord]] = lambda _: ()


NO_PLUGINS = CommandPlugins()


def belongs(word: str, points: Iterable[Point] = ()) -> str:
    """The message for a flag or key of plugins that are not chosen or not installed; empty if there is none.

    `points`: those of the command, in addition to the kernel's kinds.
    """

    def is_meant(name: str, field: FieldInfo) -> bool:
        flags = flags_of(name, field)
        return word in (name, *flags, flags[0].replace("--", "--no-", 1))

    owners = [*owners_of(is_meant, {**KINDS, **{point.kind: point for point in points}})]
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


def _warn(records: Sequence[PluginRecord], watch: StartWatch) -> None:
    warn_of_pth_files(records)
    try:
        warn_of_deprecations(records)
    except TenonryError as error:  # the start reports it
        watch.failed(error)


class PartFlags:
    """Adds the flags of chosen plugins to a parser before it parses the words that choose them.

    Flags of the kernel choose plugins, whose own flags may choose further ones, so the words are read as often. `look`:
    makes a configuration of a namespace. `added`: called with each plugin's settings, and whether it is one of the
    command's own, `others`. `replaceable`: only settings that can change while engines are replaced have a flag.
    """

    def __init__(
        self,
        parser: argparse.ArgumentParser,
        look: Callable[[argparse.Namespace], EngineConfig],
        added: Callable[[dict[str, FieldInfo], bool], None],
        *,
        others: CommandPlugins = NO_PLUGINS,
        replaceable: bool = False,
    ) -> None:
        self._parser, self._look, self._added = parser, look, added
        self._others = others
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
                for choose, is_other in ((self._of_engine, False), (self._of_command, True)):
                    for each in self._read(self._parts, choose(known), watch):
                        self._add_flags(self._parts, each, is_other=is_other)
                if len(known) == len(words) > 0:  # it is a start: neither help nor a completion
                    _warn([record for record, _ in self._parts.models], watch)
        return self._parts

    def parse(
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As the method of the parser. Raises ConfigError for a flag of a plugin that is not chosen."""
        words = run_start_flags(sys.argv[1:] if args is None else [*args])
        parts = self.add(words)
        found, unknown = self._parse(words, namespace)
        for word in unknown:
            if not word.startswith("-"):
                continue
            text = parts.problem or belongs(word.partition("=")[0], self._others.points)
            if text:
                raise ConfigError(text)
        return found, unknown

    @staticmethod
    def _read(parts: Parts, models: Iterator[Model], watch: StartWatch) -> Iterator[Model]:
        """Yield all readable parts."""
        try:
            yield from models
        except TenonryError as error:  # the start reports it
            watch.failed(error)
            parts.problem = parts.problem or str(error)

    def _of_engine(self, words: list[str]) -> Iterator[Model]:
        """The plugins of the engine that the words choose, as far as the flags are known, with their settings."""
        config = self._config(words)
        records = PluginManager(config.plugins).choose(config)
        yield from sections(records, lambda: self._config(words))

    def _of_command(self, words: list[str]) -> Iterator[Model]:
        """As `_of_engine`, the plugins of the command."""
        records = self._others.chosen(self._known(words))
        yield from sections(records, lambda: self._config(words))

    def _config(self, words: list[str]) -> EngineConfig:
        return self._look(self._known(words))

    def _known(self, words: list[str]) -> argparse.Namespace:
        """Values of the flags that are known so far."""
        known = _Partial()
        vars(self._parser)["error"] = _leave
        try:
            self._parse(words, known)
        except _UnreadableError:
            pass
        finally:
            del vars(self._parser)["error"]
        return known

    def _add_flags(self, parts: Parts, new: Model, *, is_other: bool) -> None:
        """Add the flags of settings that no plugin before has, under its own heading."""
        record, model = new
        known = parts.fields.keys()
        parts.models.append(new)
        parts.fields = merged(parts.models)
        own = {
            name: each
            for name, each in parts.fields.items()
            if name in model.model_fields and (fact(each, "replaceable") or not self._is_partial)
        }
        self._added(own, is_other)
        added = [name for name in own if name not in known]
        origin = record.distribution or record.path or record.target
        add_flags(
            self._parser, model, f"{record.kind.replace('_', ' ')} {record.name} ({origin})", added
        )
