"""`tenonry bench executor`: cost per step of an executor compared with another, with a worker that computes nothing."""

from __future__ import annotations

import argparse
import statistics

import msgspec

from tenonry.interfaces.command import Command
from tenonry_bench.figures import Spread, percentile, spread, table
from tenonry_bench.machine import Machine, describe_machine
from tenonry_bench.settings import count, write_report

TARGET_MS = 0.25  # the mean, for two ranks and 256 running requests


class ExecutorReport(msgspec.Struct, kw_only=True):
    """Milliseconds per step; spreads are over runs. `added_ms` is the difference of the two means of each run."""

    bench: str = "executor"
    executor: str
    distribution: str
    base: str
    ranks: int
    running: int
    steps: int
    runs: int
    mean_ms: Spread
    p99_ms: Spread
    base_mean_ms: Spread
    base_p99_ms: Spread
    added_ms: Spread
    target_ms: float = TARGET_MS
    machine: Machine


class ExecutorBench(Command):
    """Two engines in this process decode the same requests interleaved; only their executors differ."""

    summary = (
        "Milliseconds added to a step by an executor, compared with `uni`, on the worker `null`."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--executor", default="mp", metavar="NAME", help="Executor to measure [default: mp].")
        add(
            "--base",
            default="uni",
            metavar="NAME",
            help="Executor to compare with, on one rank [default: uni].",
        )
        add(
            "--ranks",
            type=count,
            default=2,
            metavar="N",
            help="Tensor-parallel ranks [default: 2].",
        )
        add(
            "--running",
            type=count,
            default=256,
            metavar="N",
            help="Running requests [default: 256].",
        )
        add("--steps", type=count, default=300, metavar="N", help="Steps per run [default: 300].")
        add(
            "--runs",
            type=count,
            default=5,
            metavar="N",
            help="Repetitions, interleaved [default: 5].",
        )
        add("--json", metavar="FILE", help="Write the report here.")

    def run(self, args: argparse.Namespace) -> int:
        machine = describe_machine()
        runs, base_runs, origin = measure(args)
        means, base_means = (mean_ms(some) for some in (runs, base_runs))
        report = ExecutorReport(
            executor=args.executor,
            distribution=origin,
            base=args.base,
            ranks=args.ranks,
            running=args.running,
            steps=args.steps,
            runs=args.runs,
            mean_ms=spread(means),
            p99_ms=p99_ms(runs),
            base_mean_ms=spread(base_means),
            base_p99_ms=p99_ms(base_runs),
            added_ms=spread([mine - other for mine, other in zip(means, base_means, strict=True)]),
            machine=machine,
        )
        print(describe(report))
        write_report(args.json, report)
        return 0


def measure(args: argparse.Namespace) -> tuple[list[list[float]], list[list[float]], str]:
    """Seconds of each step of each run: of the executor, and of the base; and where the executor comes from."""
    from tenonry_bench.executor_steps import DecodingEngine

    steps = args.runs * args.steps
    base = DecodingEngine(args.running, steps, executor=args.base)
    try:
        engine = DecodingEngine(
            args.running, steps, executor=args.executor, tensor_parallel_size=args.ranks
        )
        try:
            pairs = [(base.timed(args.steps), engine.timed(args.steps)) for _ in range(args.runs)]
        finally:
            engine.close()
    finally:
        base.close()
    return [mine for _, mine in pairs], [other for other, _ in pairs], engine.origin


def mean_ms(runs: list[list[float]]) -> list[float]:
    """The mean of each run."""
    return [1e3 * statistics.fmean(run) for run in runs]


def p99_ms(runs: list[list[float]]) -> Spread:
    """The 99th percentile of the steps of each run, over the runs."""
    return spread([1e3 * percentile(run, 0.99) for run in runs])


def describe(report: ExecutorReport) -> str:
    """The report for a person."""
    header = ("executor", "ranks", "mean ms", "p99 ms")
    rows = [
        (report.base, "1", report.base_mean_ms.text(3), report.base_p99_ms.text(3)),
        (report.executor, str(report.ranks), report.mean_ms.text(3), report.p99_ms.text(3)),
    ]
    title = f"executor {report.executor} ({report.distribution}), {report.running} running"
    added = f"added per step: {report.added_ms.text(3)} ms; target {report.target_ms:g} ms"
    title = f"{title}, per step, median (min–max) of {report.runs} runs"
    return "\n".join([title, table(header, rows), added, str(report.machine.pace)])
