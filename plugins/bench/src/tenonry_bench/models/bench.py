"""`tenonry bench models`: real models here and on whichever peers are installed, one table and one plot."""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from tenonry.errors import ConfigError
from tenonry.interfaces.command import Command
from tenonry_bench.machine import Machine, describe_machine, physical_cores
from tenonry_bench.models.checkpoints import default_folder, find_model
from tenonry_bench.models.engines import PEERS, Engine, chosen_peers, find_peers, ours, read_pythons
from tenonry_bench.models.measure import ModelBench
from tenonry_bench.models.plot import draw
from tenonry_bench.models.results import Result
from tenonry_bench.models.table import describe
from tenonry_bench.pace import Pace, measure_pace
from tenonry_bench.settings import MAX_MODEL_LEN, count, write_report
from tenonry_bench.workload import WorkloadFile, load_workloads

MODELS = "tiny,small"


class ModelsReport(msgspec.Struct, kw_only=True):
    """`engines`: name to version; `memory_gib`: model to engine to its memory after the offline runs, pages that many
    processes share counted once; `notes`: skipped peers and reasons; `pace_after`: `machine` has that before.
    """

    bench: str = "models"
    runs: int
    engines: dict[str, str]
    results: list[Result]
    memory_gib: dict[str, dict[str, float]]
    notes: list[str]
    engine_args: list[str]
    machine: Machine
    pace_after: Pace


class ModelsBench(Command):
    """Starts one program per engine and runs them interleaved."""

    summary = "Models compared with vLLM, llama.cpp and transformers, where installed: a table and a plot."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add(
            "--name",
            default=MODELS,
            metavar="MODEL,MODEL",
            help=f"tiny, small, folders in --models, or paths of folders [default: {MODELS}].",
        )
        add(
            "--models",
            metavar="DIR",
            help="Folder of models; tiny and small are created there [default: a cache folder].",
        )
        add("--workload", metavar="FILE", help="Workload file [default: the one of this package].")
        add("--workloads", metavar="W1,W2", help="Workloads to run [default: all of the file].")
        add("--runs", type=count, default=3, metavar="N", help="Repetitions [default: 3].")
        add(
            "--threads",
            type=count,
            metavar="N",
            help="Threads of every engine [default: physical cores].",
        )
        add(
            "--peers",
            default=",".join(PEERS),
            metavar="NAME,NAME",
            help=f"Peers: {', '.join(PEERS)}; none runs tenonry alone [default: all].",
        )
        add(
            "--peer-python",
            action="append",
            default=[],
            metavar="NAME=PATH",
            help="Python interpreter with a peer installed.",
        )
        add(
            "--engine-args",
            default="",
            metavar="TEXT",
            help="Engine flags as one argument: '--quantization int8'.",
        )
        add("--plot", metavar="FILE", help="File for the plot as SVG [default: bench-models.svg].")
        add("--json", metavar="FILE", help="Write the report here.")

    def run(self, args: argparse.Namespace) -> int:
        workloads = load_workloads(args.workload)
        names = workloads.named(args.workloads or ",".join(workloads.workloads), "")
        pythons = read_pythons(args.peer_python)
        peers, notes = find_peers(chosen_peers(args.peers), pythons)
        for note in notes:
            show_progress(note)
        folder = Path(args.models) if args.models else default_folder()
        models = {Path(each).name: find_model(each, folder) for each in args.name.split(",")}
        report = measure(args, workloads, names, models, [ours(), *peers], notes)
        print(
            describe(
                report.results, report.engines, report.notes, report.machine, report.pace_after
            )
        )
        plot = Path(args.plot or "bench-models.svg")
        write_plot(plot, draw(report.results, list(report.engines)))
        write_report(args.json, report)
        return 0


def measure(
    args: argparse.Namespace,
    workloads: WorkloadFile,
    names: list[str],
    models: dict[str, Path],
    engines: list[Engine],
    notes: list[str],
) -> ModelsReport:
    """All models, one after another."""
    machine = describe_machine()
    results: list[Result] = []
    memory: dict[str, dict[str, float]] = {}
    versions = {engine.name: "" for engine in engines}
    with tempfile.TemporaryDirectory() as scratch:
        for name, path in models.items():
            options: dict[str, Any] = {
                "model": str(path.resolve()),
                "threads": args.threads or physical_cores(),
                "max_model_len": MAX_MODEL_LEN,
                "max_num_seqs": 64,
                "engine_args": shlex.split(args.engine_args),
                "scratch": scratch,
            }
            bench = ModelBench(name, engines, workloads, options)
            results += bench.measure(names, args.runs, show_progress)
            memory[name] = bench.memory_gib
            versions |= bench.versions
            for engine, words in bench.failures.items():
                show_progress(f"{engine} failed on {name}: {words}")
                notes.append(f"{engine} failed on {name}: {words.splitlines()[-1]}")
    measured = {engine for result in results for engine in result.engines}
    return ModelsReport(
        runs=args.runs,
        engines={name: version for name, version in versions.items() if name in measured},
        results=results,
        memory_gib=memory,
        notes=notes,
        engine_args=shlex.split(args.engine_args),
        machine=machine,
        pace_after=measure_pace(),
    )


def show_progress(words: str) -> None:
    """Progress, for a person."""
    print(words, file=sys.stderr, flush=True)


def write_plot(path: Path, picture: str) -> None:
    """Raises ConfigError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(picture, "utf-8")
    except OSError as error:
        raise ConfigError(f"plot {path} cannot be written: {error.strerror}") from None
    show_progress(f"plot: {path}")
