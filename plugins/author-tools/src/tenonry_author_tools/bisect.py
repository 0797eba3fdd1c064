"""`tenonry bisect`: finds the distributions whose plugins break a start, in halves. Command line; imports no plugin."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence

from tenonry.errors import ConfigError
from tenonry.interfaces.command import Command
from tenonry.plugin.discovery import EXCLUDED, excluded
from tenonry_author_tools.argument_types import seconds
from tenonry_author_tools.bisect_state import STATE_FILE, BisectState, read_state, write_state
from tenonry_author_tools.children import run_child

UNTESTABLE = 125  # exit status of a command that can decide neither, as for `git bisect run`
FOUND, NOT_FOUND = 0, 1


class BisectCommand(Command):
    """A search over the installed distributions of others."""

    summary = "Find the distributions whose plugins break a start, or any command, by bisection."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        start = verbs.add_parser("start", help=f"Start a search; {STATE_FILE} stores its state.")
        _add_keep(start)
        verbs.add_parser("good", help="Mark the current step as working.")
        verbs.add_parser("bad", help="Mark the current step as failing.")
        verbs.add_parser("reset", help="Delete the state of the search.")
        run = verbs.add_parser(
            "run",
            help="Run the search with a command: status 0 is good, 125 aborts, any other is bad.",
        )
        _add_keep(run)
        run.add_argument(
            "--timeout",
            type=seconds,
            default=600.0,
            metavar="S",
            help="Command timeout in seconds; a timeout counts as bad. [default: %(default)g]",
        )
        run.add_argument(
            "words", metavar="command", nargs=argparse.REMAINDER, help="Command and its arguments."
        )

    def run(self, args: argparse.Namespace) -> int:
        match args.verb:
            case "start":
                state = begin(args.keep)
            case "run":
                return _run_all(begin(args.keep), args.words, args.timeout)
            case "reset":
                STATE_FILE.unlink(missing_ok=True)
                return 0
            case verb:
                state = read_state().next(is_bad=verb == "bad")
        write_state(state)
        sys.stdout.write(_advice(state))
        return 0


def _add_keep(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="DISTRIBUTION",
        help="Distribution to keep enabled, as the settings name a plugin of it. Repeatable.",
    )


def begin(keep: Sequence[str]) -> BisectState:
    """State at the start. Raises ConfigError for unknown names and where there is nothing to search."""
    from tenonry_author_tools.first_party import third_party

    names = [dist.name for dist in third_party().values()]
    if unknown := set(keep) - set(names):
        raise ConfigError(
            f"--keep {', '.join(sorted(unknown))}: not installed; installed with plugins: {', '.join(names) or 'none'}"
        )
    left = tuple(name for name in names if name not in keep)
    if not left:
        raise ConfigError(
            "no distributions of others with plugins are installed: nothing to search"
        )
    return BisectState(names=left)


def _advice(state: BisectState) -> str:
    if state.verdict:
        return f"{state.verdict}\n`tenonry bisect reset` ends the search\n"
    return (
        f"next: {state.describe()} ({state.num_suspects} suspects)\n"
        "start as before, with `tenonry --bisect` instead of `tenonry`; then `tenonry bisect good` or `bad`\n"
    )


def _run_all(state: BisectState, command: Sequence[str], timeout_s: float) -> int:
    """Test until the verdict. Raises ConfigError where the command cannot run or decides nothing."""
    command = command[1:] if command[:1] == ["--"] else command
    if not command:
        raise ConfigError("tenonry bisect run: give a command, such as tenonry generate Hello")
    while not state.verdict:
        is_bad = _is_bad(state, command, timeout_s)
        sys.stdout.write(f"{'bad' if is_bad else 'good'}: {state.describe()}\n")
        sys.stdout.flush()
        state = state.next(is_bad=is_bad)
    sys.stdout.write(f"{state.verdict}\n")
    return FOUND if state.found else NOT_FOUND


def _is_bad(state: BisectState, command: Sequence[str], timeout_s: float) -> bool:
    names = {*state.left_out(), *excluded()} - {""}
    environment = {**os.environ, EXCLUDED: ",".join(sorted(names))}
    try:
        status = run_child(command, timeout_s, env=environment, stdin=subprocess.DEVNULL).returncode
    except subprocess.TimeoutExpired:
        return True
    except OSError as error:
        raise ConfigError(f"{command[0]} cannot be run: {error.strerror}") from None
    if status == UNTESTABLE:
        raise ConfigError(f"the command exited with {UNTESTABLE}: it cannot decide; search aborted")
    return status != 0
