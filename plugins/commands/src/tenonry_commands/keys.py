"""`tenonry keys FILE`: new keys for the sockets between the nodes of one instance."""

from __future__ import annotations

import argparse
import os
import sys

from tenonry.errors import ConfigError
from tenonry.interfaces.command import Command
from tenonry.transport.keys import CurveKeys


class KeysCommand(Command):
    """The file is readable for its owner only; every node gets a copy."""

    summary = "Write the keys that the nodes of one instance share (--auth-key-file)."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("file", help="File to write; it must not exist.")

    def run(self, args: argparse.Namespace) -> int:
        try:
            descriptor = os.open(args.file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise ConfigError(f"{args.file} cannot be written: {error.strerror}") from None
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(CurveKeys.generate().encode() + "\n")
        sys.stdout.write(
            f"{args.file} holds new keys; copy it to every node and give --auth-key-file there\n"
        )
        return 0
