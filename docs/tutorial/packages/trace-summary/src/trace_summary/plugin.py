"""Command `tenonry trace-summary`: requests, tokens and latencies of a file of the stat logger `jsonl`."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from tenonry.errors import ConfigError
from tenonry.interfaces.command import Command

LATENCIES = ("queued_s", "ttft_s", "e2e_s")


class TraceSummary(Command):
    """Summarises finished requests."""

    summary = "Summarise a file of the stat logger jsonl."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("file", type=Path, help="File of the stat logger jsonl.")

    def run(self, args: argparse.Namespace) -> int:
        requests = read(args.file)
        tokens = [sum(each[key] for each in requests) for key in ("prompt_tokens", "output_tokens")]
        lines = [f"{len(requests)} requests, {tokens[0]} prompt and {tokens[1]} output tokens"]
        for key in LATENCIES:
            values = [1000 * each[key] for each in requests if each[key] is not None]
            if values:
                median, most = statistics.median(values), max(values)
                lines.append(f"{key[:-2]:7} median {median:.1f} ms, maximum {most:.1f} ms")
        sys.stdout.write("\n".join(lines) + "\n")
        return 0


def read(file: Path) -> list[dict[str, Any]]:
    """Return the requests of a file. Raises ConfigError for a file that is no trace with latencies."""
    try:
        requests = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        wanted = {"prompt_tokens", "output_tokens", *LATENCIES}
        missing = [sorted(wanted - each.keys()) for each in requests if wanted - each.keys()]
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}; write one with jsonl") from error
    if missing:
        raise ConfigError(f"{file} lacks {', '.join(missing[0])}; write one with jsonl")
    return requests
