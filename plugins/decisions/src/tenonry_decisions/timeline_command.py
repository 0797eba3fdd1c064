"""`tenonry timeline`: decision records as a page, a drawing or a trace. Command line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tenonry.interfaces.command import Command
from tenonry_decisions.sources import add_source_arguments, latest, load

MAX_REQUESTS = 200
SUFFIXES = (".html", ".svg", ".json")


class TimelineCommand(Command):
    """Writes one file, in the format of its suffix."""

    summary = (
        "Draw decision records: a page (.html), a drawing (.svg), or a trace for Perfetto (.json)."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("output", metavar="FILE", help="File to write: .html, .svg or .json.")
        parser.add_argument(
            "--requests",
            type=int,
            default=MAX_REQUESTS,
            metavar="N",
            help=f"Maximum requests drawn, newest first. [default: {MAX_REQUESTS}]",
        )
        add_source_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        from tenonry.errors import ConfigError
        from tenonry_decisions.timeline import draw, page
        from tenonry_decisions.trace import trace

        target = Path(args.output)
        if target.suffix not in SUFFIXES:
            raise ConfigError(
                f"{target}: unsupported suffix '{target.suffix}'; name a file with {', '.join(SUFFIXES)}"
            )
        if args.requests < 1:
            raise ConfigError(f"--requests {args.requests} is below 1")
        recording = latest(args, load(args))
        tracks = recording.tracks[-args.requests :]
        if target.suffix == ".json":
            data = trace(recording, tracks)
        else:
            data = (page if target.suffix == ".html" else draw)(recording, tracks).encode()
        try:
            target.write_bytes(data)
        except OSError as error:
            raise ConfigError(f"{target} cannot be written: {error.strerror}") from None
        left_out = len(recording.tracks) - len(tracks)
        more = f"; omitted {left_out} earlier requests (--requests)" if left_out else ""
        sys.stdout.write(
            f"{target}: {len(tracks)} requests, steps {recording.first}–{recording.stop - 1}{more}\n"
        )
        return 0
