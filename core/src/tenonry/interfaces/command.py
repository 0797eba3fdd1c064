"""Command: a verb of the `tenonry` command line, named in the entry-point group `tenonry.commands`.

`tenonry --help` reads metadata and source; only the selected verb's module is imported, and it imports its dependencies
in `run`, after the flags were checked.
"""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from typing import ClassVar


class Command(ABC):
    """One verb. `summary`: literal string in the class body, shown by `tenonry --help` and by the help of the verb."""

    summary: ClassVar[str] = ""

    @abstractmethod
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare flags; imports nothing heavy."""

    @abstractmethod
    def run(self, args: argparse.Namespace) -> int:
        """Run the command; returns the exit status. TenonryError becomes one line on standard error and status 1."""
