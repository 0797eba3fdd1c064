"""`tenonry bench engine`: the whole path but the model, in tokens per second and CPU time per token.

A worker that computes nothing in a separate engine process; real sockets, real detokenisation; the streams' consumer is
in this process and counts as front end.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
from collections.abc import Callable
from typing import Any

import msgspec

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError
from tenonry.interfaces.command import Command
from tenonry_bench.figures import Percentiles, Spread, percentiles, spread
from tenonry_bench.machine import Machine, describe_machine
from tenonry_bench.settings import (
    check_length,
    count,
    engine_config,
    natural,
    settings_of,
    write_report,
)
from tenonry_bench.streams import Point, StreamClient
from tenonry_commands.arguments import add_engine_arguments

WARM_UP_STREAMS = 64
WARM_UP_TOKENS = 16
WARM_UP_TRIPS = 50


class EngineReport(msgspec.Struct, kw_only=True):
    """Spreads are over runs; `ttft_ms` and `tpot_ms` of the runs' medians. CPU times are user and system together.

    `chunks` counts outputs that streams delivered. A worker that computes nothing runs ahead of the consumer, so an
    output has several tokens; with `step_ms` above the consumer's time per step it has one, and that costs more.
    """

    bench: str = "engine"
    streams: int
    prompt_len: int
    output_len: int
    runs: int
    tok_s: Spread
    frontend_us_per_tok: Spread
    engine_us_per_tok: Spread
    ttft_ms: Spread
    tpot_ms: Spread
    wall_s: Spread
    chunks: Spread
    round_trip_ms: Percentiles | None
    step_ms: float
    event_loop: str
    gc_freeze: bool
    settings: dict[str, Any]
    machine: Machine


class EngineBench(Command):
    """Drives `AsyncLLM` over the worker `null`."""

    summary = "Engine and front end without a model: worker `null`, real processes and sockets."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--streams",
            type=count,
            default=256,
            metavar="N",
            help="Concurrent requests [default: 256].",
        )
        parser.add_argument(
            "--prompt-len", type=count, default=32, metavar="N", help="Prompt tokens [default: 32]."
        )
        parser.add_argument(
            "--output-len", type=count, default=128, metavar="N", help="New tokens [default: 128]."
        )
        parser.add_argument(
            "--runs", type=count, default=5, metavar="N", help="Repetitions [default: 5]."
        )
        parser.add_argument(
            "--round-trips",
            type=natural,
            default=500,
            metavar="N",
            help="Sequential one-token requests [default: 500].",
        )
        parser.add_argument(
            "--gc-freeze",
            action=argparse.BooleanOptionalAction,
            default=True,
            help="Freeze the heap after warm-up, as a server does at start [default: on].",
        )
        parser.add_argument(
            "--event-loop",
            choices=("auto", "uvloop", "asyncio"),
            default="auto",
            help="auto: uvloop where it is installed [default: auto].",
        )
        parser.add_argument("--json", metavar="FILE", help="Write the report here.")
        add_engine_arguments(parser, model_positional=False)

    def run(self, args: argparse.Namespace) -> int:
        rows = max(args.streams, 256)
        config, facts = engine_config(
            args,
            worker="null",
            max_num_seqs=rows,
            max_num_batched_tokens=max(8192, rows),
            max_num_queued_reqs=max(4096, rows),
        )
        check_length(config, args.prompt_len, args.output_len)
        loop_name, factory = event_loop(args.event_loop)
        machine = describe_machine()
        from tenonry.client.async_llm import AsyncLLM

        engine = AsyncLLM.from_config(config)
        try:
            with asyncio.Runner(loop_factory=factory) as runner:
                client = StreamClient(engine, facts.vocab_size, args.prompt_len)
                points, trips = runner.run(measure(client, args))
        finally:
            engine.shutdown()
        report = build_report(args, config, loop_name, points, trips, machine)
        print(describe(report))
        write_report(args.json, report)
        return 0


async def measure(
    client: StreamClient, args: argparse.Namespace
) -> tuple[list[Point], list[float]]:
    """Warm up, time one-token requests one after another, then the runs. Round trips are seconds."""
    await client.point(
        min(args.streams, WARM_UP_STREAMS), min(args.output_len, WARM_UP_TOKENS), seed=7
    )
    if args.gc_freeze:
        gc.collect()
        gc.freeze()
    number = WARM_UP_TRIPS + args.round_trips if args.round_trips else 0
    trips = [(await client.point(1, 1, seed=10_000 + trip)).wall_s for trip in range(number)]
    return [
        await client.point(args.streams, args.output_len, seed=100 + run)
        for run in range(args.runs)
    ], trips


def event_loop(choice: str) -> tuple[str, Callable[[], asyncio.AbstractEventLoop] | None]:
    """Name and factory of the event loop. Raises ConfigError if uvloop is selected and missing."""
    if choice == "asyncio":
        return "asyncio", None
    try:
        import uvloop
    except ImportError:
        if choice == "uvloop":
            raise ConfigError(
                "--event-loop uvloop: uvloop is not installed; pip install uvloop"
            ) from None
        return "asyncio", None
    return "uvloop", uvloop.new_event_loop


def build_report(
    args: argparse.Namespace,
    config: EngineConfig,
    loop_name: str,
    points: list[Point],
    trips: list[float],
    machine: Machine,
) -> EngineReport:
    """Sum the runs up."""
    return EngineReport(
        streams=args.streams,
        prompt_len=args.prompt_len,
        output_len=args.output_len,
        runs=args.runs,
        tok_s=spread([point.tokens / point.wall_s for point in points]),
        frontend_us_per_tok=spread([1e6 * point.frontend_cpu_s / point.tokens for point in points]),
        engine_us_per_tok=spread([1e6 * point.engine_cpu_s / point.tokens for point in points]),
        ttft_ms=spread([1e3 * point.ttft_p50_s for point in points]),
        tpot_ms=spread([1e3 * point.tpot_p50_s for point in points]),
        wall_s=spread([point.wall_s for point in points]),
        chunks=spread([point.chunks for point in points]),
        round_trip_ms=percentiles(trips[WARM_UP_TRIPS:], 1e3) if trips else None,
        step_ms=float(config.worker.options.get("step_ms", 0.0)),
        event_loop=loop_name,
        gc_freeze=args.gc_freeze,
        settings=settings_of(config),
        machine=machine,
    )


def describe(report: EngineReport) -> str:
    """The report for a person."""
    size = f"{report.streams} streams of {report.prompt_len} + {report.output_len} tokens"
    lines = [
        f"{size}, {report.runs} runs, {report.event_loop}; median (min–max)",
        f"  tokens per second            {report.tok_s.text(0)}",
        f"  front-end CPU, µs per token  {report.frontend_us_per_tok.text(2)}",
        f"  engine CPU, µs per token     {report.engine_us_per_tok.text(2)}",
        f"  time to first token, ms      {report.ttft_ms.text(1)}",
        f"  time per token, ms           {report.tpot_ms.text(3)}",
        f"  tokens per delivery          {report.streams * report.output_len / report.chunks.median:.1f}",
    ]
    if report.round_trip_ms is not None:
        trip = report.round_trip_ms
        lines.append(f"  one-token round trip, ms     {trip.p50:.3f} p50, {trip.p99:.3f} p99")
    return "\n".join([*lines, str(report.machine.pace)])
