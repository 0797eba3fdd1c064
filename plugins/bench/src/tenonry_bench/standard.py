"""`tenonry bench` without more words: the standard set, one process per part, in one table with targets and a peer."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from tenonry.errors import ConfigError
from tenonry.interfaces.command import Command
from tenonry_bench.figures import table
from tenonry_bench.machine import Machine, describe_machine
from tenonry_bench.peers import PeerFigure, peer_figures
from tenonry_bench.settings import count, write_report
from tenonry_bench.standard_figures import (
    Figure,
    engine_rows,
    loading_rows,
    scheduler_rows,
    startup_rows,
    throughput_rows,
)
from tenonry_bench.standard_scale import (
    affinity_rows,
    data_parallel_rows,
    scale_commands,
    served_rows,
    server_commands,
    start_rows,
)

ROWS = {
    "scheduler": scheduler_rows,
    "engine": engine_rows,
    "startup": startup_rows,
    "loading": loading_rows,
    "start-engines": start_rows,
    "data-parallel": data_parallel_rows,
    "affinity": affinity_rows,
    "serve": served_rows,
    "throughput": throughput_rows,
}  # in the order in which they run
PARTS = tuple(ROWS)
# Streams, output length, milliseconds that a step pretends to take.
PROMPT_LEN = 32  # the default of the engine benchmark
QUICK_POINTS = ((4, 8, 0), (4, 8, 2))
ENGINE_POINTS = ((1, 1024, 0), (256, 128, 0), (1024, 128, 0), (1, 128, 5), (256, 128, 5))


class StandardReport(msgspec.Struct, kw_only=True):
    """`reports`: those of the parts. `failures`: part to its last output."""

    bench: str = "standard"
    figures: list[Figure]
    peers: dict[str, PeerFigure]
    reports: list[dict[str, Any]]
    failures: dict[str, str]
    machine: Machine


class StandardBench(Command):
    """Runs the parts one after another, each in a fresh process, and compares."""

    summary = "The standard set."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--models",
            metavar="DIR",
            help="Folder of model folders, such as tiny and small [default: only the model demo].",
        )
        parser.add_argument(
            "--peer",
            nargs="+",
            default=[],
            metavar="FILE",
            help="JSON files with measurements of a peer.",
        )
        parser.add_argument(
            "--only", metavar="PART,PART", help=f"Parts to run: {', '.join(PARTS)} [default: all]."
        )
        parser.add_argument(
            "--runs",
            type=count,
            metavar="N",
            help="Repetitions of each part [default: the part's own].",
        )
        parser.add_argument(
            "--quick", action="store_true", help="Finish in seconds; the figures are meaningless."
        )
        parser.add_argument("--json", metavar="FILE", help="Write figures and all reports here.")

    def run(self, args: argparse.Namespace) -> int:
        peers = peer_figures(args.peer)
        models = find_models(args.models)
        machine = describe_machine()
        commands = plan(chosen_parts(args.only), models, quick=args.quick, runs=args.runs)
        reports, failures = run_all(commands)
        figures = figures_from(reports, peers)
        print(describe(figures, peers, machine))
        for part, words in failures.items():
            print(f"\n{part} failed:\n{words}", file=sys.stderr)
        report = StandardReport(
            figures=figures, peers=peers, reports=reports, failures=failures, machine=machine
        )
        write_report(args.json, report)
        return 1 if failures else 0


def chosen_parts(text: str | None) -> list[str]:
    """The parts to run. Raises ConfigError for one that is none."""
    parts = list(PARTS) if text is None else text.split(",")
    for part in parts:
        if part not in PARTS:
            raise ConfigError(f"--only {text}: '{part}' is none of {', '.join(PARTS)}")
    return parts


def find_models(folder: str | None) -> dict[str, str]:
    """Name to folder of each model in `folder`, or the demo model. Raises ConfigError if there is none."""
    if folder is None:
        return {"demo": "demo"}
    found = {
        path.parent.name: str(path.parent) for path in sorted(Path(folder).glob("*/config.json"))
    }
    if not found:
        raise ConfigError(f"--models {folder}: no folder in it holds a config.json")
    return found


def plan(
    parts: list[str], models: dict[str, str], *, quick: bool, runs: int | None
) -> dict[str, list[str]]:
    """Title to words of `tenonry bench`. The control plane and the start are measured on `tiny`, if available."""
    small = models.get("tiny") or next(iter(models.values()))
    repeat = ["--runs", str(runs)] if runs else []
    once = ["--runs", "1"] if quick else []
    commands: dict[str, list[str]] = {}
    if "scheduler" in parts:
        sizes = ["--running", "32", "--waiting", "0,100", "--steps", "16"] if quick else []
        commands["scheduler"] = ["scheduler", *sizes, *once, *repeat]
    if "engine" in parts:
        longest = longest_sequence(small)
        for streams, output_len, step_ms in QUICK_POINTS if quick else ENGINE_POINTS:
            title = f"engine, {streams} streams" + (f", steps of {step_ms} ms" if step_ms else "")
            output = min(output_len, longest - PROMPT_LEN)
            size = ["--streams", str(streams), "--output-len", str(output), "--model", small]
            trips = [] if streams == 1 and not step_ms else ["--round-trips", "0"]
            steps = ["--worker-option", f"step_ms={step_ms}"] if step_ms else []
            commands[title] = ["engine", *size, *trips, *steps, *once, *repeat]
    if "startup" in parts:
        commands["startup"] = [
            "startup",
            "--model",
            small,
            *once,
            *(["--quick-runs", "1"] * quick),
            *repeat,
        ]
    if "loading" in parts:
        large = models.get("small") or small
        commands["loading"] = ["loading", "--model", large, *once, *repeat]
    for part, words in scale_commands(small, quick=quick).items():
        if part in parts:
            commands[part] = [*words, *once, *repeat]
    if "serve" in parts:
        for title, words in server_commands(small, quick=quick).items():
            commands[title] = [*words, *once, *repeat]
    if "throughput" in parts:
        for name, path in models.items():
            commands[f"throughput, {name}"] = [
                "throughput",
                "--model",
                path,
                "--name",
                "W1,W2",
                *once,
                *repeat,
            ]
    return commands


def longest_sequence(model: str) -> int:
    """Tokens that the model was made for."""
    from tenonry.config.sources import make_config
    from tenonry.plugin.manager import PluginManager

    config = make_config({"model": model})
    return PluginManager(config.plugins).resolve_model(config).max_model_len


def run_all(commands: dict[str, list[str]]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """(reports, last output of the parts that failed). The output of the parts goes to standard error."""
    reports, failures = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for index, (title, words) in enumerate(commands.items()):
            file = Path(folder) / f"{index}.json"
            started = time.monotonic()
            print(f"{title} …", file=sys.stderr, flush=True)
            command = [sys.executable, "-m", "tenonry_bench", *words, "--json", str(file)]
            done = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                check=False,
            )
            print(
                f"{done.stdout.rstrip()}\n({time.monotonic() - started:.0f} s)\n",
                file=sys.stderr,
                flush=True,
            )
            if file.exists():
                reports.append(msgspec.json.decode(file.read_bytes()))
            if done.returncode:
                failures[title] = "\n".join(done.stdout.splitlines()[-5:])
    return reports, failures


def figures_from(reports: list[dict[str, Any]], peers: dict[str, PeerFigure]) -> list[Figure]:
    """All rows, in the order of the reports."""
    rows = [row for report in reports for row in ROWS[report["bench"]](report)]
    for row in rows:
        found = peers.get(row.key)
        row.peer = None if found is None else found.value
    return rows


def describe(figures: list[Figure], peers: dict[str, PeerFigure], machine: Machine) -> str:
    """The table for a person."""
    rows = [figure.cells() for figure in figures]
    sources = sorted({peers[figure.key].source for figure in figures if figure.key in peers})
    return "\n".join(
        [
            table(("figure", "ours", "target", "met", "peer", "ratio"), rows),
            "",
            "ours: median (min–max) of the runs; ratio: how many times better than the peer (above 1 is better).",
            f"peer: {'; '.join(sources) or 'none'}.",
            f"{machine.cpu}, {machine.usable_cores} cores, {machine.python}; load was {machine.load_average:.1f}.",
            f"{machine.pace}.",
        ]
    )
