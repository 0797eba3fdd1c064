"""`tenonry bench start-engines`: from the start of N engine processes to N engines that can be used. Front end."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError, LaunchError
from tenonry.interfaces.command import Command
from tenonry.interfaces.launcher import Death
from tenonry.interfaces.recovery import EngineEvents
from tenonry.launch.supervise import CHILD_DEFAULTS
from tenonry_bench.figures import Spread, spread
from tenonry_bench.layouts import Layout, alternated
from tenonry_bench.machine import Machine, describe_machine
from tenonry_bench.settings import count, counts, engine_config, refuse, settings_of, write_report
from tenonry_commands.arguments import add_engine_arguments


class StartResult(msgspec.Struct):
    """Wall seconds until all of `engines` were ready and connected; `ratio` to the first number of the same run."""

    engines: int
    ready_s: Spread
    ratio: Spread


class StartReport(msgspec.Struct, kw_only=True):
    """`results`: one per number of engines, in the order of the flags. `imports`: the same for plain interpreters that
    only import an engine's modules: the machine's part of the ratio.
    """

    bench: str = "start-engines"
    runs: int
    results: list[StartResult]
    imports: list[StartResult]
    settings: dict[str, Any]
    machine: Machine


class StartEnginesBench(Command):
    """Starts engines repeatedly. The front end's own work, such as loading a tokenizer, is not counted."""

    summary = "Seconds until N engines with the worker `null` are ready."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--sizes",
            type=counts,
            default=[1, 4],
            metavar="N,N",
            help="Numbers of engines, compared with the first one [default: 1,4].",
        )
        parser.add_argument(
            "--runs", type=count, default=5, metavar="N", help="Repetitions [default: 5]."
        )
        parser.add_argument("--json", metavar="FILE", help="Write the report here.")
        add_engine_arguments(parser, model_positional=False)

    def run(self, args: argparse.Namespace) -> int:
        refuse(args, {"data_parallel_size": "--sizes"})
        if 0 in args.sizes:
            raise ConfigError("--sizes 0: at least one engine has to start")
        config, _ = engine_config(args, worker="null")
        machine = describe_machine()
        starter = Starter(config)
        starter.seconds(1)  # from now on the files are in the page cache
        sizes = list(dict.fromkeys(args.sizes))
        rounds = [
            {
                size: (starter.seconds(size), starter.import_seconds(size))
                for size in alternated(sizes, run)
            }
            for run in range(args.runs)
        ]
        results, imports = (
            summarise(sizes, [{size: pair[which] for size, pair in one.items()} for one in rounds])
            for which in (0, 1)
        )
        report = StartReport(
            runs=args.runs,
            results=results,
            imports=imports,
            settings=settings_of(config),
            machine=machine,
        )
        print(describe(report))
        write_report(args.json, report)
        return 0


class _Deaths(EngineEvents):
    """Those of engines that end by themselves."""

    def __init__(self) -> None:
        self.deaths: list[Death] = []

    def on_death(self, index: int, death: Death) -> None:
        self.deaths.append(death)


class Starter:
    """The part of a front end that starts engines."""

    def __init__(self, config: EngineConfig) -> None:
        from tenonry.client.start import resolve_front_end

        self._config = config
        _, self._plan, _ = resolve_front_end(config, launcher=True)

    def seconds(self, engines: int) -> float:
        """Start this many engines, and stop them again. Raises LaunchError if one ends by itself."""
        from tenonry.client.engines import OwnedEngines

        events = _Deaths()
        fleet = OwnedEngines(Layout("", engines).config(self._config))
        began = time.perf_counter()
        try:
            fleet.start(events)
            took = time.perf_counter() - began
        finally:
            fleet.shutdown()
        if events.deaths:
            raise LaunchError(str(events.deaths[0]))
        return took

    def import_seconds(self, processes: int) -> float:
        """Seconds until all interpreters have imported an engine's modules and exited."""
        parts = [self._plan.get(kind) for kind in ("executor", "scheduler", "worker")]
        modules = [part.target.partition(":")[0] for part in parts if not part.path]
        program = f"import {', '.join(['tenonry.engine.proc', *modules])}"
        began = time.perf_counter()
        environment = {**CHILD_DEFAULTS, **os.environ}
        command = [sys.executable, "-P", "-c", program]
        running = [subprocess.Popen(command, env=environment) for _ in range(processes)]
        codes = [process.wait() for process in running]
        if any(codes):
            raise LaunchError(f"an interpreter could not run: {program}")
        return time.perf_counter() - began


def summarise(sizes: Sequence[int], rounds: Sequence[dict[int, float]]) -> list[StartResult]:
    """Ratios are taken run by run."""
    return [
        StartResult(
            size,
            spread([one[size] for one in rounds]),
            spread([one[size] / one[sizes[0]] for one in rounds]),
        )
        for size in sizes
    ]


def describe(report: StartReport) -> str:
    """The report for a person."""
    title = f"engines from start to ready, seconds, {report.runs} runs in turn, median (min–max)"
    rows = [
        f"  {one.engines:3} {what}  {one.ready_s.text(2)}, ratio {one.ratio.text(2)}"
        for what, results in (("engines", report.results), ("imports alone", report.imports))
        for one in results
    ]
    return "\n".join([title, *rows, str(report.machine.pace)])
