"""`tenonry bench loading`: a worker's load over a plain read of the same bytes, both cached, interleaved."""

from __future__ import annotations

import argparse
import gc
import mmap
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tenonry.config import EngineConfig
from tenonry.errors import Unsupported
from tenonry.info import ModelInfo, PluginRecord
from tenonry.interfaces.command import Command
from tenonry.interfaces.worker import Worker, WorkerContext
from tenonry.plugin.checks import load_options
from tenonry.plugin.manager import PluginManager, build_plugin
from tenonry.plugin.plan import load_class
from tenonry_bench.figures import Spread, spread, table
from tenonry_bench.machine import Machine, describe_machine
from tenonry_bench.settings import count, engine_config, settings_of, write_report
from tenonry_commands.arguments import add_engine_arguments
from tenonry_hf_hub import find_weights

TARGET = 1.2
BROUGHT = ("look", "weights")  # the phases that bring the model in; what follows computes with it
PAGE = 4096
CLOCK_S = 1e-9  # resolution of a clock


class Seconds(NamedTuple):
    """Seconds on the clock, and of this process on all cores."""

    wall: float
    cpu: float


class Times(msgspec.Struct, frozen=True):
    """Seconds of one thing over the runs."""

    wall_s: Spread
    cpu_s: Spread


class LoadingReport(msgspec.Struct, kw_only=True):
    """`read`: the files into allocated memory. `mapped`: the files mapped, every page touched, which a worker that maps
    its weights does later. `phases`: of the worker's load. `ratio_cpu` and `ratio_wall`, run by run: loading phases and
    `mapped`, over `read`. `first`: the first load, with the imports of libraries.
    """

    bench: str = "loading"
    model: str
    worker: str
    num_files: int
    num_bytes: int
    read: Times
    mapped: Times
    load: Times
    phases: dict[str, Times]
    first: tuple[float, float]
    ratio_cpu: Spread
    ratio_wall: Spread
    target: float = TARGET
    settings: dict[str, Any]
    machine: Machine


class Run(NamedTuple):
    """One turn."""

    read: Seconds
    mapped: Seconds
    load: Seconds
    phases: dict[str, Seconds]

    def ratio(self, field: str) -> float:
        """`field` of the loading phases, divided by that of the plain read."""
        brought = [self.phases[name] for name in BROUGHT if name in self.phases] or [self.load]
        total = sum(getattr(part, field) for part in (*brought, self.mapped))
        return float(total / max(getattr(self.read, field), CLOCK_S))


class LoadingBench(Command):
    """Loads a model repeatedly in this process, and reads its files for comparison."""

    summary = "Model loading from the page cache, relative to reading the same bytes."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--runs", type=count, default=7, metavar="N", help="Repetitions [default: 7]."
        )
        parser.add_argument("--json", metavar="FILE", help="Write the report here.")
        add_engine_arguments(parser, model_positional=False)

    def run(self, args: argparse.Namespace) -> int:
        config, model = engine_config(args)
        files = find_weights(model.path).files
        machine = describe_machine()
        record = PluginManager(config.plugins).resolve("worker", config.worker, config)
        read_files(files, room_for(files))  # from here on they are in the page cache
        first = load(record, config, model)[0]
        runs = [measure(files, record, config, model) for _ in range(args.runs)]
        report = LoadingReport(
            model=config.model,
            worker=record.name,
            num_files=len(files),
            num_bytes=sum(file.stat().st_size for file in files),
            read=times([run.read for run in runs]),
            mapped=times([run.mapped for run in runs]),
            load=times([run.load for run in runs]),
            phases={name: times([run.phases[name] for run in runs]) for name in runs[0].phases},
            first=(first.wall, first.cpu),
            ratio_cpu=spread([run.ratio("cpu") for run in runs]),
            ratio_wall=spread([run.ratio("wall") for run in runs]),
            settings=settings_of(config),
            machine=machine,
        )
        print(describe(report))
        write_report(args.json, report)
        return 0


def measure(
    files: tuple[Path, ...], record: PluginRecord, config: EngineConfig, model: ModelInfo
) -> Run:
    """Read the files, map them, load the model."""
    read = timed(partial(read_files, files, room_for(files)))
    mapped = timed(partial(map_files, files))
    took, phases = load(record, config, model)
    return Run(read, mapped, took, phases)


def timed(work: Callable[[], object]) -> Seconds:
    """Time of `work`."""
    gc.collect()
    wall = time.perf_counter()
    cpu = time.process_time()
    work()
    return Seconds(time.perf_counter() - wall, time.process_time() - cpu)


def room_for(files: tuple[Path, ...]) -> memoryview:
    """Memory for the largest file, every page of it written once: a read's time should not include that."""
    size = max(file.stat().st_size for file in files)
    return memoryview(np.ones(max(size, 1), np.uint8))


def read_files(files: tuple[Path, ...], room: memoryview) -> None:
    """Every byte of the files, one file after another, into `room`."""
    for path in files:
        size = path.stat().st_size
        with path.open("rb", buffering=0) as file:
            done = 0
            while done < size:
                done += file.readinto(room[done:size])


def map_files(files: tuple[Path, ...]) -> None:
    """Map the files and touch one byte of each page."""
    for path in files:
        if not path.stat().st_size:
            continue
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as there:
            np.frombuffer(there, np.uint8)[::PAGE].max()


def load(
    record: PluginRecord, config: EngineConfig, model: ModelInfo
) -> tuple[Seconds, dict[str, Seconds]]:
    """Build the worker, load, and drop it: the time of `load`, and its phases if the worker reports them."""
    worker_class = load_class(record)
    context = WorkerContext(
        config,
        model,
        max_model_len=config.max_model_len or model.max_model_len,
        options=load_options(record, worker_class),
    )
    worker: Worker = build_plugin(record, context)
    try:
        took = timed(worker.load)
        phases = {name: Seconds(*pair) for name, pair in worker.call("load_phases").items()}
    except Unsupported:
        phases = {}
    finally:
        worker.shutdown()
    gc.collect()
    return took, phases


def times(found: list[Seconds]) -> Times:
    """Both clocks over the runs."""
    return Times(spread([one.wall for one in found]), spread([one.cpu for one in found]))


def describe(report: LoadingReport) -> str:
    """The report for a person."""
    rows = [
        ("read the bytes", *_cells(report.read)),
        ("map the files, touch every page", *_cells(report.mapped)),
        *((f"load: {name}", *_cells(part)) for name, part in report.phases.items()),
        ("load, all of it", *_cells(report.load)),
    ]
    wall, cpu = report.first
    size = f"{report.num_bytes / 1e9:.3f} GB in {report.num_files} files"
    ratio = f"{report.ratio_cpu.text(2)} by CPU, {report.ratio_wall.text(2)} by the clock"
    return "\n".join(
        [
            f"loading {report.model}, worker {report.worker}: {size}, median (min–max)",
            table(("seconds", "on the clock", "CPU"), rows),
            f"the first load, with imports: {wall:.2f} s, {cpu:.2f} s of CPU",
            f"to bring the model in (look, weights, pages), over reading its bytes: {ratio}",
            f"aimed at: {report.target:g} at most",
            str(report.machine.pace),
        ]
    )


def _cells(found: Times) -> tuple[str, str]:
    return found.wall_s.text(3), found.cpu_s.text(3)
