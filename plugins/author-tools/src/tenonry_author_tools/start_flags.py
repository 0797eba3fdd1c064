"""`tenonry --safe-mode VERB …`, `--locked`, `--bisect` and `--checked`: conditions of a start. Command line.

Before the verb they act before its module is imported, behind it before plugins are chosen. What they exclude is in a
variable, so that the processes of the start exclude it, too.
"""

from __future__ import annotations

import argparse
import logging
import os
from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path

from tenonry.errors import PluginError
from tenonry.interfaces.command import Command
from tenonry.plugin.discovery import EXCLUDED, excluded

logger = logging.getLogger("tenonry.plugins")
FLAGS = ("--safe-mode", "--locked", "--bisect", "--checked")


class StartFlag(Command):
    """A flag in the place of a verb, which comes behind it. Without `words` it only prepares this process."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        for flag in FLAGS:
            if not parser.prog.endswith(f" {flag}"):
                parser.add_argument(
                    flag,
                    action="append_const",
                    dest="further",
                    const=flag,
                    help="Also apply this flag.",
                )
        parser.add_argument(
            "words", nargs=argparse.REMAINDER, metavar="VERB …", help="Verb and its arguments."
        )

    def run(self, args: argparse.Namespace) -> int:
        from tenonry.cli import main

        self.prepare()
        return 0 if args.words is None else main([*(args.further or ()), *args.words])

    @abstractmethod
    def prepare(self) -> None:
        """Check or change what this process and its children see. Raises a TenonryError to reject the start."""


class SafeModeFlag(StartFlag):
    """Plugins of this project alone."""

    summary = "Run a verb with first-party plugins only; list the excluded ones."

    def prepare(self) -> None:
        from tenonry_author_tools.first_party import third_party

        labels = [f"{dist.name} {dist.version}" for dist in third_party().values()]
        exclude(dist.name for dist in third_party().values())
        logger.warning("safe mode: disabled %s", ", ".join(labels) or "nothing")


class LockedFlag(StartFlag):
    """An installation as it was locked."""

    summary = "Run a verb only if the installation matches tenonry.lock; imports no plugin before."

    def prepare(self) -> None:
        from tenonry_author_tools.lock import DEFAULT_FILE, check_lock

        check_lock(Path(DEFAULT_FILE))


class BisectFlag(StartFlag):
    """The plugins of the current step of `tenonry bisect`."""

    summary = "Run a verb with the plugins that the current step of `tenonry bisect` tests."

    def prepare(self) -> None:
        from tenonry_author_tools.bisect_state import read_state

        state = read_state()
        exclude(state.left_out())
        logger.warning("bisect: %s", state.describe())


class CheckedFlag(StartFlag):
    """Plugins of others without faults."""

    summary = "Run a verb only if the checks of `tenonry doctor` find no errors in plugins."

    def prepare(self) -> None:
        from tenonry_author_tools.imported import TIMEOUT_S
        from tenonry_author_tools.installation import examine

        findings = examine(TIMEOUT_S)
        for finding in findings:
            if not finding.is_error:
                logger.warning("%s", finding)
        if errors := [str(finding) for finding in findings if finding.is_error]:
            raise PluginError("; ".join(errors))


def exclude(names: Iterable[str]) -> None:
    """Leave distributions out of this process and its children, besides those that are left out already."""
    if chosen := {*names, *excluded()} - {""}:
        os.environ[EXCLUDED] = ",".join(sorted(chosen))
