"""The conformance suite of commands, those below `tenonry plugins` included. Test process.

from tenonry_testkit.command import CommandContract

class TestMine(CommandContract):
    command = "my_package:MyCommand"
    arguments = ["--flag", "value"]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import signal
from collections.abc import Sequence
from typing import Any, ClassVar

from tenonry.cli import COMMANDS, VerbParser
from tenonry.interfaces.command import Command
from tenonry_testkit.effects import watched
from tenonry_testkit.targets import resolve_target

# Names in the namespace of a verb below another one.
RESERVED = {"verb", "command"}


class CommandContract:
    """Subclass in a test module and name the `command`. `arguments`: words with which it succeeds, without effect on
    the machine; None skips the test that runs it.
    """

    command: ClassVar[str | type[Command] | None] = None
    arguments: ClassVar[Sequence[str] | None] = None

    # ------------------------------------------------------------------ tools, for tests of your own
    def build(self) -> Command:
        """Build the command like `tenonry`."""
        target: Any = self.command
        found, _, _ = resolve_target(COMMANDS, target)
        made: Command = found()
        return made

    def parser(self) -> argparse.ArgumentParser:
        """Return a parser with its arguments."""
        return self._parser_of(self.build())

    def run(self, *words: str) -> tuple[int, str]:
        """Return status and standard output of `tenonry VERB WORDS`."""
        command = self.build()
        args = self._parser_of(command).parse_args(words)
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            status = command.run(args)
        return status, output.getvalue()

    def _parser_of(self, command: Command) -> argparse.ArgumentParser:
        parser = VerbParser("tenonry verb", description=command.summary)
        command.add_arguments(parser)
        return parser

    # ------------------------------------------------------------------ the contract
    def test_it_is_a_command_that_the_command_line_accepts(self) -> None:
        """It resolves, and is built without arguments."""
        assert isinstance(self.build(), Command)

    def test_it_has_a_summary_of_one_line(self) -> None:
        """The line under its own `--help`, and in the list of verbs."""
        summary = self.build().summary
        assert isinstance(summary, str)
        assert summary.strip(), "summary is empty"
        assert len(summary.splitlines()) == 1, f"summary has several lines: {summary!r}"

    def test_its_help_can_be_printed(self) -> None:
        """For itself and all verbs below it. A percent sign in a help text is written `%%`."""
        for parser in _all_parsers(self.parser()):
            assert parser.format_help()

    def test_every_argument_has_a_help_text(self) -> None:
        """Users read flags before pages."""
        for action in _actions(self.parser()):
            assert action.help, f"{_name(action)} has no help text"

    def test_arguments_are_declared_anew_for_each_parser(self) -> None:
        """Help and completion build their own parsers, from one command or several."""
        command = self.build()
        found = [_names(self._parser_of(each)) for each in (command, command, self.build())]
        assert found[0] == found[1] == found[2]

    def test_declaring_arguments_has_no_effects(self) -> None:
        """Every completion of a command line does it: no files, sockets, processes, output or threads."""
        command = self.build()
        with watched() as effects:
            self._parser_of(command)
        assert not effects, effects

    def test_it_claims_no_reserved_names(self) -> None:
        """`verb` and `command` in the parsed arguments are those of `tenonry plugins`."""
        claimed = {action.dest for action in _actions(self.parser())} & RESERVED
        assert not claimed, f"arguments are stored under reserved names: {sorted(claimed)}"

    def test_flags_are_spelt_as_those_of_tenonry(self) -> None:
        """Long flags have dashes, not underscores; hidden flags, compatible with other engines, are exempt."""
        for action in _actions(self.parser()):
            for flag in action.option_strings:
                is_right = "_" not in flag or action.help == argparse.SUPPRESS
                assert is_right, f"{flag}: write {flag.replace('_', '-')}"

    def test_it_runs_and_returns_a_status(self) -> None:
        """0 for success, as an int."""
        if self.arguments is None:
            return
        status, _ = self.run(*self.arguments)
        assert type(status) is int, f"run returned {status!r}, which is no exit status"
        assert status == 0

    def test_a_run_leaves_the_process_as_it_was(self) -> None:
        """Current folder, environment and signal handlers: `tenonry` may be called as a function."""
        if self.arguments is None:
            return
        handler = signal.getsignal(signal.SIGINT)
        folder, environment = os.getcwd(), dict(os.environ)  # noqa: PTH109
        try:
            self.run(*self.arguments)
            assert signal.getsignal(signal.SIGINT) is handler, "it left a handler of SIGINT"
            assert os.getcwd() == folder, "it changed the current folder"  # noqa: PTH109
            assert dict(os.environ) == environment, "it changed the environment"
        finally:
            signal.signal(signal.SIGINT, handler)
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)


def _all_parsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """The parser and those of its verbs."""
    found = [parser]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                found += _all_parsers(each)
    return found


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Arguments and flags of the parser and its verbs."""
    return [
        action
        for each in _all_parsers(parser)
        for action in each._actions
        if not isinstance(action, argparse._SubParsersAction | argparse._HelpAction)
    ]


def _name(action: argparse.Action) -> str:
    return " ".join(action.option_strings) or action.dest


def _names(parser: argparse.ArgumentParser) -> list[str]:
    return [_name(action) for action in _actions(parser)]
