"""`tenonry top`: a live view of a running server, by its metrics. Command line."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

from tenonry.interfaces.command import Command
from tenonry_author_tools.argument_types import seconds
from tenonry_commands.screen import screen

KEY = "TENONRY_API_KEY"
CLEAR = "\x1b[H\x1b[2J"  # cursor to the corner, and an empty screen


class TopCommand(Command):
    """Throughput, queue, K/V use, cache hits, percentiles and plugins of a server."""

    summary = "Watch a running server: throughput, queue, K/V cache, hits, percentiles, plugins."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--url",
            default="http://127.0.0.1:8000",
            help="URL of the server. [default: %(default)s]",
        )
        parser.add_argument("--api-key", help=f"API key of the server. [env: {KEY}]")
        parser.add_argument(
            "--interval",
            type=seconds,
            default=2.0,
            metavar="S",
            help="Refresh interval in seconds. Rates and percentiles cover one interval. [default: %(default)g]",
        )
        parser.add_argument("--once", action="store_true", help="Show one interval and exit.")
        parser.add_argument("--json", action="store_true", help="Print a JSON object per interval.")

    def run(self, args: argparse.Namespace) -> int:
        from tenonry_author_tools.running_server import RunningServer
        from tenonry_author_tools.samples import read_samples, summary

        key = args.api_key or os.environ.get(KEY, "").partition(",")[0]
        server = RunningServer(args.url, key)
        before, then = read_samples(server.text("/metrics")), time.monotonic()
        while True:
            time.sleep(args.interval)
            now, at = read_samples(server.text("/metrics")), time.monotonic()
            found = summary(before, now, at - then)
            before, then = now, at
            if args.json:
                sys.stdout.write(json.dumps(found) + "\n")
            else:
                clear = CLEAR if sys.stdout.isatty() and not args.once else ""
                sys.stdout.write(clear + screen(args.url, found))
            sys.stdout.flush()
            if args.once:
                return 0
