"""`tenonry models check | convert`. Process of the command line; a checkpoint is converted in a child of it."""

from __future__ import annotations

import argparse
import sys

from tenonry.interfaces.command import Command
from tenonry_commands.arguments import add_engine_arguments, config_from_arguments
from tenonry_commands.familiar_flags import add_familiar_flags
from tenonry_commands.flags import human_int

DEFAULT_SHARD_BYTES = 5 * 10**9


class ModelsCommand(Command):
    """Looks at models and converts checkpoints."""

    summary = "Check what a model needs, or convert a checkpoint to safetensors."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        check = verbs.add_parser(
            "check",
            help="Check from config and file headers whether a model can be served, and its memory needs.",
            description="Exit status: 0 it can be served here with these settings, 1 it cannot, 2 wrong usage.",
        )
        check.add_argument("--json", action="store_true", help="Print JSON.")
        check.add_argument(
            "--memory",
            type=human_int,
            metavar="BYTES",
            help="Free memory to check against, such as 80G [default: that of this machine].",
        )
        add_engine_arguments(check)
        add_familiar_flags(check)
        convert = verbs.add_parser(
            "convert",
            help="Convert a folder with .bin or .pt weights to safetensors.",
            description="Reads pickles as plain tensors only, in a process without network.",
        )
        convert.add_argument(
            "folder", metavar="FOLDER", help="Folder with config.json and weights."
        )
        convert.add_argument("out", metavar="OUT", help="Folder to write; it must not exist.")
        convert.add_argument(
            "--shard-bytes",
            type=human_int,
            default=DEFAULT_SHARD_BYTES,
            metavar="BYTES",
            help="Maximum tensor bytes per file [default: 5 GB].",
        )

    def run(self, args: argparse.Namespace) -> int:
        if args.verb == "convert":
            from tenonry_models.convert import convert

            sys.stdout.write(convert(args.folder, args.out, args.shard_bytes) + "\n")
            return 0
        from tenonry_models.check import check
        from tenonry_models.report import as_json, as_text

        report = check(config_from_arguments(args), args.memory)
        sys.stdout.write(as_json(report) if args.json else as_text(report))
        return 0 if report.servable else 1
