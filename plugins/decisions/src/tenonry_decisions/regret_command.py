"""`tenonry regret`: compares recorded requests with a replay under another scheduler. Command line."""

from __future__ import annotations

import argparse
import sys

import msgspec

from tenonry.config import EngineConfig
from tenonry.interfaces.command import Command
from tenonry_commands.arguments import (
    add_engine_arguments,
    config_from_arguments,
    sources_from_arguments,
)
from tenonry_decisions.recording import Recording
from tenonry_decisions.sources import add_source_arguments, load_pair, place

COLUMNS = ("requests", "steps", "preemptions")
MEASURES = ("mean", "p50", "p99")


class RegretCommand(Command):
    """Compares the recorded run with a replay, or with the recorded shadow."""

    summary = (
        "Replay recorded requests with another scheduler or policy, and compare latencies in steps."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="Print one JSON object.")
        add_source_arguments(parser)
        add_engine_arguments(parser, model_positional=False)

    def run(self, args: argparse.Namespace) -> int:
        from tenonry.errors import ConfigError
        from tenonry_decisions.replay import complete, outcome, regret, replay

        live, other = load_pair(args)
        handles = {track.facts.handle for track in complete(live)}
        try:
            if other is None:
                other = replay(live, replay_config(args, live))
            else:
                handles &= {track.facts.handle for track in complete(other)}
            first, second = outcome(live, handles), outcome(other, handles)
        except ValueError as error:
            raise ConfigError(f"{place(args)}: {error}") from None
        lost = regret(first, second)
        if args.json:
            found = {"live": first, other.header.source: second, "regret": lost}
            sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
            return 0
        names = [
            *COLUMNS,
            *(f"{each} {measure}" for each in ("TTFT", "E2E") for measure in MEASURES),
        ]
        sys.stdout.write(_line("", names))
        for label, one in (("live", first), (other.header.source, second)):
            values = [getattr(one, name) for name in COLUMNS]
            values += [getattr(part, name) for part in (one.ttft, one.e2e) for name in MEASURES]
            sys.stdout.write(_line(f"{label}: {one.scheduler}", values))
        sys.stdout.write(_line("regret", ["", "", "", *lost.values()]))
        return 0


def replay_config(args: argparse.Namespace, live: Recording) -> EngineConfig:
    """Configuration of a replay: flags, environment and `--config`, then the recorded settings. Raises ConfigError."""
    from tenonry_decisions.replay import recorded_settings

    given = sources_from_arguments(args).values(EngineConfig)
    recorded = {"model": "recorded", **recorded_settings(live)}
    missing = {name: value for name, value in recorded.items() if name not in given}
    return config_from_arguments(args, **missing)


def _line(name: str, values: list[object]) -> str:
    return f"{name:<32}" + "".join(f"{value!s:>12}" for value in values) + "\n"
