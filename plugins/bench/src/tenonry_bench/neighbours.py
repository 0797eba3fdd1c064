"""`tenonry bench neighbours`: slowdown of streams by busy processes on the same machine.

The measuring process is the front end. Threads that spin while they wait for each other block other processes from
their processors, or each other.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError
from tenonry.interfaces.command import Command
from tenonry_bench.engine import event_loop
from tenonry_bench.figures import Spread, spread, table
from tenonry_bench.layouts import alternated
from tenonry_bench.machine import Machine, describe_machine
from tenonry_bench.settings import (
    add_count_flags,
    check_length,
    counts,
    engine_config,
    settings_of,
    write_report,
)
from tenonry_bench.streams import StreamClient
from tenonry_commands.arguments import add_engine_arguments

BUSY = "while True: pass"
WARM_UP_TOKENS = 8

Case = tuple[int, int]


class NeighboursResult(msgspec.Struct, kw_only=True):
    """Spreads are over runs. `tpot_ms`, `ttft_ms`: the streams' medians; `slower`: ratio of tokens per second of the
    same run with the first number of neighbours to this one.
    """

    neighbours: int
    streams: int
    tok_s: Spread
    tpot_ms: Spread
    ttft_ms: Spread
    slower: Spread


class NeighboursReport(msgspec.Struct, kw_only=True):
    """`results`: one per number of streams and, within it, of neighbours, in the order of the flags."""

    bench: str = "neighbours"
    prompt_len: int
    output_len: int
    runs: int
    results: list[NeighboursResult]
    settings: dict[str, Any]
    machine: Machine


class Timing(msgspec.Struct, frozen=True):
    """One run of one case."""

    tok_s: float
    tpot_ms: float
    ttft_ms: float


class NeighboursBench(Command):
    """Drives `AsyncLLM` on a real model while other processes compute."""

    summary = "Slowdown of streams on a machine with busy processes."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--neighbours",
            type=counts,
            default=[0, 1, 2],
            metavar="N,N",
            help="Numbers of busy processes, compared with the first one [default: 0,1,2].",
        )
        parser.add_argument(
            "--streams",
            type=counts,
            default=[1, 64],
            metavar="N,N",
            help="Numbers of concurrent requests [default: 1,64].",
        )
        add_count_flags(
            parser,
            ("--prompt-len", 32, "Prompt tokens"),
            ("--output-len", 64, "New tokens"),
            ("--runs", 3, "Repetitions"),
        )
        parser.add_argument("--json", metavar="FILE", help="Write the report here.")
        add_engine_arguments(parser, model_positional=False)

    def run(self, args: argparse.Namespace) -> int:
        if 0 in args.streams:
            raise ConfigError("--streams 0 measures nothing; give numbers of at least 1")
        config, facts = engine_config(args, max_num_seqs=max(64, *args.streams))
        check_length(config, args.prompt_len, args.output_len)
        machine = describe_machine()
        from tenonry.client.async_llm import AsyncLLM

        engine = AsyncLLM.from_config(config)
        try:
            with asyncio.Runner(loop_factory=event_loop("auto")[1]) as runner:
                client = StreamClient(engine, facts.vocab_size, args.prompt_len)
                timings = runner.run(measure(client, args))
        finally:
            engine.shutdown()
        report = build_report(args, config, timings, machine)
        print(describe(report))
        write_report(args.json, report)
        return 0


async def measure(client: StreamClient, args: argparse.Namespace) -> dict[Case, list[Timing]]:
    """Warm up, then every number of streams with every number of neighbours, interleaved."""
    cases = [(streams, number) for streams in args.streams for number in args.neighbours]
    await client.point(max(args.streams), WARM_UP_TOKENS, seed=7)
    timings: dict[Case, list[Timing]] = {case: [] for case in cases}
    for run in range(args.runs):
        for case in alternated(cases, run):
            streams, number = case
            with busy(number):
                point = await client.point(streams, args.output_len, seed=100 + run)
            timing = Timing(
                tok_s=point.tokens / point.wall_s,
                tpot_ms=1e3 * point.tpot_p50_s,
                ttft_ms=1e3 * point.ttft_p50_s,
            )
            timings[case].append(timing)
    return timings


@contextlib.contextmanager
def busy(number: int) -> Iterator[None]:
    """Processes of this session that compute without a pause; none is left afterwards."""
    with contextlib.ExitStack() as stack:
        for _ in range(number):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-S", "-c", BUSY]))
            stack.callback(process.kill)
        yield


def build_report(
    args: argparse.Namespace,
    config: EngineConfig,
    timings: dict[Case, list[Timing]],
    machine: Machine,
) -> NeighboursReport:
    """Sum the runs up."""
    results = []
    for (streams, number), measured in timings.items():
        alone = timings[streams, args.neighbours[0]]
        pairs = zip(measured, alone, strict=True)
        result = NeighboursResult(
            neighbours=number,
            streams=streams,
            tok_s=spread([timing.tok_s for timing in measured]),
            tpot_ms=spread([timing.tpot_ms for timing in measured]),
            ttft_ms=spread([timing.ttft_ms for timing in measured]),
            slower=spread([first.tok_s / timing.tok_s for timing, first in pairs]),
        )
        results.append(result)
    return NeighboursReport(
        prompt_len=args.prompt_len,
        output_len=args.output_len,
        runs=args.runs,
        results=results,
        settings=settings_of(config),
        machine=machine,
    )


def describe(report: NeighboursReport) -> str:
    """The report for a person."""
    header = ("streams", "busy processes", "tok/s", "ms per token", "TTFT ms", "times slower")
    rows = [
        (
            str(result.streams),
            str(result.neighbours),
            result.tok_s.text(1),
            result.tpot_ms.text(2),
            result.ttft_ms.text(1),
            result.slower.text(2),
        )
        for result in report.results
    ]
    size = f"{report.prompt_len} + {report.output_len} tokens, {report.runs} runs in turn"
    return f"{size}: median (min–max)\n{table(header, rows)}\n{report.machine.pace}"
