"""The command line `tenonry`: verbs are entry points, help is metadata, and only the chosen verb is imported."""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import errno
import gc
import logging
import os
import re
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any, NoReturn

from tenonry.errors import PluginNotFound, TenonryError
from tenonry.logs import configure_logging
from tenonry.plugin import Point

if TYPE_CHECKING:
    from tenonry.interfaces.command import Command

COMMANDS = Point(
    "tenonry.commands",
    "tenonry.interfaces.command:Command",
    {
        verb: package
        for package, verbs in {
            "tenonry-author-tools": "bisect doctor top",
            "tenonry-bench": "bench",
            "tenonry-commands": "chat completion generate keys plugins ps",
            "tenonry-decisions": "explain regret timeline",
            "tenonry-models": "models",
            "tenonry-openai-server": "batch replace serve",
        }.items()
        for verb in verbs.split()
    },
)

USAGE = "usage: tenonry [--version] [--help] VERB …"
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status (1: an error, 2: wrong usage, 130: interrupted)."""
    configure_logging("tenonry")
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in {"-h", "--help", "help"}:
        sys.stdout.write(help_text())
        return 0
    if words[0] in {"-V", "--version"}:
        from tenonry.version import __version__

        sys.stdout.write(f"tenonry {__version__}\n")
        return 0
    return _guarded(words[0], words[1:], owns_process=argv is None)


def _guarded(verb: str, words: list[str], *, owns_process: bool) -> int:
    """Run a verb; an error becomes one line, with its traceback at level DEBUG. An interrupt or a closed pipe prints
    nothing.
    """
    try:
        status = _run(verb, words, owns_process=owns_process)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        logging.getLogger("tenonry").debug("tenonry %s failed", verb, exc_info=True)
        number = getattr(error, "errno", None)
        if number in (errno.ENOSPC, errno.EPIPE):
            # Discard buffered output.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        elif not isinstance(error, TenonryError):
            from tenonry.plugin.manager import find_plugin

            error = find_plugin(COMMANDS, verb).fault("its command", error)
        if number != errno.EPIPE:  # for example `tenonry plugins list | head`
            sys.stderr.write(f"tenonry: error: {' '.join(str(error).splitlines())}\n")
        return 1


def _run(verb: str, words: list[str], *, owns_process: bool) -> int:
    if owns_process:
        gc.disable()
    try:
        parser, command = make_parser(verb)
    except PluginNotFound as error:
        sys.stderr.write(f"{USAGE}\ntenonry: error: {error}\n")
        return 2
    arguments = parser.parse_args(words)
    if owns_process:
        # Skip garbage collection of imported modules at exit. Workers freeze their imports in
        # processes where objects are frozen already.
        gc.freeze()
        gc.enable()
    return command.run(arguments)


class VerbParser(argparse.ArgumentParser):
    """Argument parser with one-line errors that name the problem and the correct input; a full usage text would fill
    the screen.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.allow_abbrev = False

    def error(self, message: str) -> NoReturn:
        known = _flags(self)
        words = re.findall(r"(?<!\S)-[^\s=:/]*", message)
        near = [
            flag
            for word in words
            for flag in difflib.get_close_matches(word, known, n=1)
            if word not in known
        ]
        hint = f"; did you mean {', '.join(near)}?" if near else ";"
        self.exit(
            2, f"{self.prog}: error: {message}{hint} `{self.prog} --help` lists what there is\n"
        )


def _flags(parser: argparse.ArgumentParser) -> set[str]:
    """Flags of the parser and of its verbs; argparse reports an unknown flag at the top level."""
    known = set(parser._option_string_actions)  # noqa: SLF001 - argparse offers no other way
    for action in parser._actions:  # noqa: SLF001
        for verb in getattr(action.choices, "values", list)():
            if isinstance(verb, argparse.ArgumentParser):  # rather than the value of a flag
                known |= _flags(verb)
    return known


def make_parser(verb: str) -> tuple[argparse.ArgumentParser, Command]:
    """Return the parser of a verb and its command. Raises PluginNotFound, or PluginError for a broken distribution."""
    from tenonry.plugin.manager import resolve_point

    found, _ = resolve_point(COMMANDS, verb)
    command: Command = found()
    parser = VerbParser(f"tenonry {verb}", description=command.summary)
    command.add_arguments(parser)
    return parser, command


def help_text() -> str:
    """Summaries of all verbs, without imports."""
    from tenonry.plugin.discovery import installed

    verbs = "".join(
        f"  {entry.name:<12} {_summary(entry.target)} ({entry.distribution} {entry.version})\n"
        for entry in installed(COMMANDS)
    )
    return (
        f"{USAGE}\n\nA plugin-first inference engine for language models.\n\nverbs:\n{verbs}\n"
        "`tenonry VERB --help` explains a verb; `tenonry plugins list` shows what is installed.\n"
    )


def _summary(target: str) -> str:
    """Return the literal `summary` of a class, read from its source; "" without one."""
    spec: Any = None
    with contextlib.suppress(Exception):
        module, name = target.split(":")
        for part in module.split("."):
            spec = PathFinder.find_spec(part, spec and spec.submodule_search_locations)
        tree: Any = ast.parse(spec.loader.get_source(part))
        body = next(each.body for each in tree.body if getattr(each, "name", "") == name)
        found = next(each for each in body if re.match(r"summary\b", ast.unparse(each)))
        return str(ast.literal_eval(found.value))
    return ""
