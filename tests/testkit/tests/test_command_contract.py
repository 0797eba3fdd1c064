"""The suite of commands, over one that is right and over broken ones."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from typing import ClassVar

import pytest

from tenonry.interfaces.command import Command
from tenonry_testkit.command import CommandContract
from tenonry_testkit.outcomes import failing_tests


class Count(Command):
    """Counts to a number."""

    summary = "Count to a number."

    def add_arguments(self, parser):
        parser.add_argument("number", type=int, help="Last number; 100 %% of it is counted.")
        parser.add_argument("--step-width", type=int, default=1, help="Difference of two numbers.")

    def run(self, args):
        sys.stdout.write(" ".join(map(str, range(0, args.number + 1, args.step_width))) + "\n")
        return 0


class TestCount(CommandContract):
    command = Count
    arguments: ClassVar = ["4", "--step-width", "2"]

    def test_it_counts(self):
        assert self.run("4", "--step-width", "2") == (0, "0 2 4\n")


class TestByName(CommandContract):
    command = f"{__name__}:Count"


class WithVerbs(Command):
    summary = "Count or not."

    def add_arguments(self, parser):
        verbs = parser.add_subparsers(dest="mode", required=True)
        Count().add_arguments(verbs.add_parser("count", help="Count."))

    def run(self, args):
        return 0


class TestVerbs(CommandContract):
    command = WithVerbs
    arguments: ClassVar = ["count", "3"]


class NeedsAnArgument(Count):
    caught_by = "test_it_is_a_command_that_the_command_line_accepts"

    def __init__(self, config):
        self.config = config


class NoSummary(Count):
    caught_by = "test_it_has_a_summary_of_one_line"
    summary = " "


class LongSummary(Count):
    caught_by = "test_it_has_a_summary_of_one_line"
    summary = "Count to a number.\nOne after another."


class SinglePercent(Count):
    caught_by = "test_its_help_can_be_printed"

    def add_arguments(self, parser):
        super().add_arguments(parser)
        parser.add_argument("--share", help="Share in % of the number.")


class SinglePercentOfAVerb(WithVerbs):
    caught_by = "test_its_help_can_be_printed"

    def add_arguments(self, parser):
        verbs = parser.add_subparsers(dest="mode")
        SinglePercent().add_arguments(verbs.add_parser("count", help="Count."))


class Unexplained(Count):
    caught_by = "test_every_argument_has_a_help_text"

    def add_arguments(self, parser):
        super().add_arguments(parser)
        parser.add_argument("--quietly", action="store_true")


class DeclaresOnce(Count):
    caught_by = "test_arguments_are_declared_anew_for_each_parser"
    is_declared = False

    def add_arguments(self, parser):
        if not self.is_declared:
            super().add_arguments(parser)
            DeclaresOnce.is_declared = True


class Grows(Count):
    caught_by = "test_arguments_are_declared_anew_for_each_parser"
    flags: ClassVar[list[str]] = []

    def add_arguments(self, parser):
        self.flags.append(f"--level{len(self.flags)}")
        for flag in self.flags:
            parser.add_argument(flag, help="A level.")


class PrintsFirst(Count):
    caught_by = "test_declaring_arguments_has_no_effects"

    def add_arguments(self, parser):
        print("counting…")
        super().add_arguments(parser)


class SetsAVariable(Count):
    caught_by = "test_declaring_arguments_has_no_effects"

    def add_arguments(self, parser):
        os.environ["TENONRY_TEST_COUNTS"] = "1"
        super().add_arguments(parser)


class StartsAThread(Count):
    caught_by = "test_declaring_arguments_has_no_effects"

    def add_arguments(self, parser):
        ended = threading.Event()
        threading.Thread(target=ended.wait, args=(60,), daemon=True).start()
        STARTED.append(ended)
        super().add_arguments(parser)


class TakesTheVerb(Count):
    caught_by = "test_it_claims_no_reserved_names"

    def add_arguments(self, parser):
        parser.add_argument("verb", help="What to do.")
        super().add_arguments(parser)


class Underscores(Count):
    caught_by = "test_flags_are_spelt_as_those_of_tenonry"

    def add_arguments(self, parser):
        super().add_arguments(parser)
        parser.add_argument("--at_most", help="Numbers at most.")


class ReturnsNothing(Count):
    caught_by = "test_it_runs_and_returns_a_status"

    def run(self, args):
        super().run(args)


class ReturnsTrue(Count):
    caught_by = "test_it_runs_and_returns_a_status"

    def run(self, args):
        return bool(super().run(args))


class Fails(Count):
    caught_by = "test_it_runs_and_returns_a_status"

    def run(self, args):
        raise KeyError(args.number)


class KeepsAHandler(Count):
    caught_by = "test_a_run_leaves_the_process_as_it_was"

    def run(self, args):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return super().run(args)


class GoesElsewhere(Count):
    caught_by = "test_a_run_leaves_the_process_as_it_was"

    def run(self, args):
        os.chdir("/")
        return super().run(args)


STARTED: list[threading.Event] = []
BROKEN = [
    value
    for value in list(globals().values())
    if isinstance(value, type) and "caught_by" in vars(value)
]


@pytest.fixture(autouse=True)
def _ended_threads():
    yield
    while STARTED:
        STARTED.pop().set()


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
@pytest.mark.broken("command", "plugin_command")
def test_broken_ones_are_caught(broken):
    words = ["4"] if broken is not WithVerbs else ["count", "4"]
    suite = type("Suite", (CommandContract,), {"command": broken, "arguments": words})
    assert broken.caught_by in failing_tests(suite, [broken.caught_by])


def test_every_test_of_the_suite_catches_one():
    tests = {name for name in dir(CommandContract) if name.startswith("test_")}
    assert tests == {broken.caught_by for broken in BROKEN}


def test_a_command_may_have_a_parser_of_its_own():
    """The parser of `tenonry` is one of argparse."""
    assert isinstance(TestCount().parser(), argparse.ArgumentParser)
