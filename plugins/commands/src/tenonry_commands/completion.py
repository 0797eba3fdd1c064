"""`tenonry completion SHELL`: a completion script for the verbs and flags of all installed commands."""

from __future__ import annotations

import argparse
import sys

from tenonry.cli import COMMANDS, make_parser
from tenonry.errors import PluginNotFound
from tenonry.interfaces.command import Command
from tenonry.plugin.discovery import installed

SHELLS = ("bash", "zsh", "tcsh")


class CompletionCommand(Command):
    """Built by shtab from the parsers themselves, so it is never out of date."""

    summary = 'Print a shell completion script; for bash: eval "$(tenonry completion bash)".'

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("shell", choices=SHELLS, help="Shell.")

    def run(self, args: argparse.Namespace) -> int:
        try:
            import shtab
        except ModuleNotFoundError:
            raise PluginNotFound(
                "completion needs a package that is missing: pip install shtab"
            ) from None
        sys.stdout.write(shtab.complete(whole_parser(), args.shell) + "\n")
        return 0


def whole_parser() -> argparse.ArgumentParser:
    """One parser with every verb as a sub-command."""
    parser = argparse.ArgumentParser("tenonry")
    parser.add_argument("--version", action="store_true")
    verbs = parser.add_subparsers(dest="verb")
    for entry in installed(COMMANDS):
        own, command = make_parser(entry.name)
        parser_of = verbs.add_parser(entry.name, help=own.description, conflict_handler="resolve")
        command.add_arguments(parser_of)
        if part_flags := vars(parser_of).get("part_flags"):
            part_flags.add()
    return parser
