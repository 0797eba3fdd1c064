"""`tenonry bench scheduler`: `schedule()` and `update_from_output()` in steady decoding, in milliseconds per step."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from typing import Any

import msgspec

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError
from tenonry.interfaces.command import Command
from tenonry_bench.figures import Spread, percentile, spread, table
from tenonry_bench.machine import Machine, describe_machine
from tenonry_bench.settings import count, counts, write_report
from tenonry_commands.arguments import parse_options

MIN_STEPS = 320  # 20 turns of a block of 16: every row fills 20 blocks while we look


class CaseResult(msgspec.Struct, kw_only=True):
    """One case. Spreads are over runs. `mean_ms` per step is the sum of the means `schedule_ms`, `update_ms` and, with
    the validator on, `validate_ms`; `p99_ms` and `max_ms` are over the steps of a run.
    """

    running: int
    waiting: int
    validator: bool
    steps: int
    mean_ms: Spread
    p99_ms: Spread
    max_ms: Spread
    schedule_ms: Spread
    update_ms: Spread
    validate_ms: Spread


class SchedulerReport(msgspec.Struct, kw_only=True):
    """`results`: one per combination of running, waiting and validator."""

    bench: str = "scheduler"
    scheduler: str
    distribution: str
    block_size: int
    prefix_caching: bool
    steps_in_flight: int
    clock: str
    runs: int
    results: list[CaseResult]
    settings: dict[str, Any]
    machine: Machine


class SchedulerBench(Command):
    """Drives a scheduler alone, with the results that the worker `null` would return."""

    summary = "Scheduler alone: milliseconds per decoding step, with the validator off and on."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        self._add_case(parser.add_argument)
        self._add_engine(parser.add_argument)
        self._add_measuring(parser.add_argument)

    def _add_case(self, add: Callable[..., object]) -> None:
        """Add the flags of the measured case."""
        add(
            "--scheduler",
            default="batching",
            metavar="NAME",
            help="Scheduler: name, module:Class or path.py:Class [default: batching].",
        )
        add(
            "--scheduler-option",
            action="append",
            metavar="KEY=VALUE",
            help="Option of the scheduler.",
        )
        add(
            "--scheduling-policy",
            default="fcfs",
            metavar="NAME",
            help="Policy of the batching scheduler [default: fcfs].",
        )
        add(
            "--running",
            type=counts,
            default=[256, 1024],
            metavar="N,N",
            help="Running requests [default: 256,1024].",
        )
        add(
            "--waiting",
            type=counts,
            default=[0, 100_000],
            metavar="N,N",
            help="Waiting requests [default: 0,100000].",
        )
        add("--validator", choices=("off", "on", "both"), default="both", help="[default: both]")

    def _add_engine(self, add: Callable[..., object]) -> None:
        add(
            "--block-size",
            type=count,
            default=16,
            metavar="N",
            help="KV block size in tokens [default: 16].",
        )
        add(
            "--steps-in-flight",
            type=int,
            choices=(1, 2, 3),
            default=1,
            help="Steps in flight [default: 1].",
        )
        add(
            "--prefix-caching",
            action=argparse.BooleanOptionalAction,
            default=True,
            help="[default: on]",
        )

    def _add_measuring(self, add: Callable[..., object]) -> None:
        add(
            "--steps",
            type=count,
            default=MIN_STEPS,
            metavar="N",
            help=f"Steps per run [default: {MIN_STEPS}].",
        )
        add("--runs", type=count, default=3, metavar="N", help="Repetitions [default: 3].")
        add(
            "--clock",
            choices=("wall", "cpu"),
            default="wall",
            help="Clock: wall, or cpu for the CPU time of this thread on a busy machine [default: wall].",
        )
        add("--json", metavar="FILE", help="Write the report here.")

    def run(self, args: argparse.Namespace) -> int:
        from tenonry_bench.scheduler_steps import Case, SchedulerRig

        if 0 in args.running:
            raise ConfigError("--running 0: at least one request has to run")
        options = parse_options(args.scheduler_option or (), "--scheduler-option")
        config = EngineConfig(
            model="none",
            scheduler={"name": args.scheduler, "options": options},
            scheduling_policy=args.scheduling_policy,
            block_size=args.block_size,
            enable_prefix_caching=args.prefix_caching,
        )
        machine = describe_machine()
        rig = SchedulerRig(
            config, steps=args.steps, depth=args.steps_in_flight, cpu_clock=args.clock == "cpu"
        )
        validators = {"off": [False], "on": [True], "both": [False, True]}[args.validator]
        results = []
        for running, waiting, validator in itertools.product(
            args.running, args.waiting, validators
        ):
            case = Case(running, waiting, validator)
            results.append(case_result(case, [rig.run(case) for _ in range(args.runs)]))
        report = SchedulerReport(
            scheduler=args.scheduler,
            distribution=rig.origin,
            block_size=args.block_size,
            prefix_caching=args.prefix_caching,
            steps_in_flight=args.steps_in_flight,
            clock=args.clock,
            runs=args.runs,
            results=results,
            settings={"scheduling_policy": args.scheduling_policy, "scheduler_options": options},
            machine=machine,
        )
        print(describe(report))
        write_report(args.json, report)
        return 0


def case_result(case: Any, runs: list[Any]) -> CaseResult:
    """Sum the runs of a case up; a run is a `scheduler_steps.StepTimes`."""

    def means(name: str) -> Spread:
        return spread([1e3 * sum(getattr(run, name)) / len(run.total) for run in runs])

    return CaseResult(
        running=case.running,
        waiting=case.waiting,
        validator=case.validator,
        steps=len(runs[0].total),
        mean_ms=means("total"),
        p99_ms=spread([1e3 * percentile(run.total, 0.99) for run in runs]),
        max_ms=spread([1e3 * max(run.total) for run in runs]),
        schedule_ms=means("schedule"),
        update_ms=means("update"),
        validate_ms=means("validate"),
    )


def describe(report: SchedulerReport) -> str:
    """The report for a person."""
    header = (
        "running",
        "waiting",
        "validator",
        "mean ms",
        "p99 ms",
        "schedule ms",
        "update ms",
        "validate ms",
    )
    rows = [
        (
            str(result.running),
            str(result.waiting),
            "on" if result.validator else "off",
            result.mean_ms.text(3),
            result.p99_ms.text(3),
            f"{result.schedule_ms.median:.3f}",
            f"{result.update_ms.median:.3f}",
            f"{result.validate_ms.median:.3f}",
        )
        for result in report.results
    ]
    title = f"scheduler {report.scheduler} ({report.distribution}), block size {report.block_size}"
    return f"{title}, per step, median (min–max) of {report.runs} runs\n{table(header, rows)}\n{report.machine.pace}"
