"""Command `tenonry v1-command`: counts the prompts of a file, one per line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tenonry.errors import ConfigError
from tenonry.interfaces.command import Command


class V1Command(Command):
    """Counts lines that are not empty."""

    summary = "Count the prompts of a file, one per line."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("file", help="File with one prompt per line.")

    def run(self, args: argparse.Namespace) -> int:
        try:
            lines = Path(args.file).read_text("utf-8").splitlines()
        except OSError as error:
            raise ConfigError(
                f"{args.file} cannot be read: {error.strerror}; name a text file"
            ) from error
        sys.stdout.write(f"{sum(map(bool, lines))}\n")
        return 0
