"""`tenonry explain`: why a request waited, step by step. Command line."""

from __future__ import annotations

import argparse
import json
import sys

from tenonry.interfaces.command import Command
from tenonry_decisions.sources import add_source_arguments, load


class ExplainCommand(Command):
    """Prints the history of one request."""

    summary = "Explain from decision records why a request waited, and list its steps."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "request",
            nargs="?",
            metavar="REQUEST",
            help="Request id, a unique part of it, or the handle. Default: list all requests.",
        )
        parser.add_argument("--json", action="store_true", help="Print one JSON object.")
        add_source_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        from tenonry.errors import ConfigError
        from tenonry_decisions.explain import describe, explain

        found = load(args)
        if args.request is None:
            labels = [track.label for each in found for track in each.tracks]
            sys.stdout.write(
                json.dumps({"requests": labels}) + "\n"
                if args.json
                else "".join(f"{label}\n" for label in labels)
            )
            return 0
        error: LookupError | None = None
        for recording in reversed(found):
            try:
                track = recording.find(args.request)
            except LookupError as failure:
                error = error or failure
                continue
            if args.json:
                lines = [line._asdict() for line in explain(recording, track)]
                sys.stdout.write(json.dumps({"request": track.label, "spans": lines}) + "\n")
            else:
                sys.stdout.write(describe(recording, track) + "\n")
            return 0
        raise ConfigError(str(error))
