"""`tenonry bench data-parallel`: throughput of several engines, and cost of coordinator and load balancing.

Engines with a worker that computes nothing, in separate processes. All layouts run concurrently and are measured
interleaved, with the same prompts and machine, so that their ratios are comparable.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
from collections.abc import Sequence
from typing import Any

import msgspec

from tenonry.errors import ConfigError
from tenonry.interfaces.command import Command
from tenonry_bench.engine import WARM_UP_STREAMS, WARM_UP_TOKENS, event_loop
from tenonry_bench.figures import Spread, spread, table
from tenonry_bench.layouts import Layout, alternated, started
from tenonry_bench.machine import Machine, describe_machine
from tenonry_bench.settings import (
    check_length,
    count,
    counts,
    engine_config,
    refuse,
    settings_of,
    write_report,
)
from tenonry_bench.streams import Point, StreamClient
from tenonry_commands.arguments import add_engine_arguments

STATIC = Layout("2 engines, round-robin", 2, "round-robin")
COORDINATED = Layout("2 engines, affinity, coordinator", 2, coordinated=True)
Round = dict[Layout, Point]


class LayoutResult(msgspec.Struct, kw_only=True):
    """Spreads over runs. CPU times are user and system together, `engine_us_per_tok` of all processes but the front
    end; `us_per_tok` is the sum of both and `cores` how many cores all kept busy.
    """

    layout: str
    engines: int
    load_balancing: str
    coordinated: bool
    processes: int
    tok_s: Spread
    us_per_tok: Spread
    frontend_us_per_tok: Spread
    engine_us_per_tok: Spread
    cores: Spread
    ttft_ms: Spread


class DataParallelReport(msgspec.Struct, kw_only=True):
    """`coordinator_ratio`: CPU time per token of two engines with coordinator and affinity over that of two behind
    round robin without a coordinator, run by run.
    """

    bench: str = "data-parallel"
    streams: int
    prompt_len: int
    output_len: int
    requests: int
    runs: int
    results: list[LayoutResult]
    coordinator_ratio: Spread
    event_loop: str
    settings: dict[str, Any]
    machine: Machine


class DataParallelBench(Command):
    """Drives one `AsyncLLM` per layout."""

    summary = "Tokens per second and CPU time per token by number of engines."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add(
            "--sizes",
            type=counts,
            default=[1, 2, 4],
            metavar="N,N",
            help="Numbers of engines [default: 1,2,4].",
        )
        add(
            "--streams",
            type=count,
            default=256,
            metavar="N",
            help="Concurrent requests [default: 256].",
        )
        add(
            "--prompt-len", type=count, default=32, metavar="N", help="Prompt tokens [default: 32]."
        )
        add("--output-len", type=count, default=128, metavar="N", help="New tokens [default: 128].")
        add(
            "--requests",
            type=count,
            default=8,
            metavar="N",
            help="Of each stream, one by one [default: 8].",
        )
        add("--runs", type=count, default=11, metavar="N", help="Repetitions [default: 11].")
        add(
            "--event-loop",
            choices=("auto", "uvloop", "asyncio"),
            default="auto",
            help="auto: uvloop where it is installed [default: auto].",
        )
        add("--json", metavar="FILE", help="Write the report here.")
        add_engine_arguments(parser, model_positional=False)

    def run(self, args: argparse.Namespace) -> int:
        refuse(args, {"data_parallel_size": "--sizes"})
        if 0 in args.sizes:
            raise ConfigError("--sizes 0: at least one engine has to run")
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
        with contextlib.ExitStack() as running, asyncio.Runner(loop_factory=factory) as runner:
            clients, processes = {}, {}
            for layout in layouts_for(args.sizes, config.load_balancer.name):
                engine, processes[layout] = running.enter_context(started(layout, config))
                clients[layout] = StreamClient(
                    engine, facts.vocab_size, args.prompt_len, processes[layout]
                )
            rounds = runner.run(measure(clients, args))
        report = DataParallelReport(
            streams=args.streams,
            prompt_len=args.prompt_len,
            output_len=args.output_len,
            requests=args.requests,
            runs=args.runs,
            results=[summarise(layout, 1 + len(processes[layout]), rounds) for layout in clients],
            coordinator_ratio=coordinator_ratio(rounds),
            event_loop=loop_name,
            settings=settings_of(config),
            machine=machine,
        )
        print(describe(report))
        write_report(args.json, report)
        return 0


def layouts_for(sizes: Sequence[int], balancing: str) -> list[Layout]:
    """Layouts of `sizes` engines with one front end, and the two layouts whose ratio is reported."""
    plain = [
        Layout(f"{size} engine{'s' * (size > 1)}", size, balancing) for size in dict.fromkeys(sizes)
    ]
    return [*plain, STATIC, COORDINATED]


async def measure(clients: dict[Layout, StreamClient], args: argparse.Namespace) -> list[Round]:
    """Warm all up, then the runs, interleaved over all layouts."""
    for client in clients.values():
        await client.point(
            min(args.streams, WARM_UP_STREAMS), min(args.output_len, WARM_UP_TOKENS), seed=7
        )
    gc.collect()
    gc.freeze()

    async def point(layout: Layout, run: int) -> Point:
        size = (args.streams, args.output_len)
        return await clients[layout].point(*size, seed=100 + run, requests=args.requests)

    return [
        {layout: await point(layout, run) for layout in alternated([*clients], run)}
        for run in range(args.runs)
    ]


def us_per_token(point: Point) -> float:
    """CPU time of all processes."""
    return 1e6 * (point.frontend_cpu_s + point.engine_cpu_s) / point.tokens


def summarise(layout: Layout, processes: int, rounds: Sequence[Round]) -> LayoutResult:
    """One layout over all runs."""
    points = [one[layout] for one in rounds]
    return LayoutResult(
        layout=layout.name,
        engines=layout.engines,
        load_balancing=layout.balancing,
        coordinated=layout.coordinated,
        processes=processes,
        tok_s=spread([point.tokens / point.wall_s for point in points]),
        us_per_tok=spread([us_per_token(point) for point in points]),
        frontend_us_per_tok=spread([1e6 * point.frontend_cpu_s / point.tokens for point in points]),
        engine_us_per_tok=spread([1e6 * point.engine_cpu_s / point.tokens for point in points]),
        cores=spread(
            [(point.frontend_cpu_s + point.engine_cpu_s) / point.wall_s for point in points]
        ),
        ttft_ms=spread([1e3 * point.ttft_p50_s for point in points]),
    )


def coordinator_ratio(rounds: Sequence[Round]) -> Spread:
    """Ratio run by run, since a temporary slowdown of one layout affects its neighbour as well."""
    return spread([us_per_token(one[COORDINATED]) / us_per_token(one[STATIC]) for one in rounds])


def describe(report: DataParallelReport) -> str:
    """The report for a person."""
    header = (
        "layout",
        "processes",
        "tokens/s",
        "CPU µs/token",
        "front end",
        "the rest",
        "cores busy",
        "TTFT ms",
    )
    rows = [
        (
            result.layout,
            str(result.processes),
            result.tok_s.text(0),
            result.us_per_tok.text(2),
            f"{result.frontend_us_per_tok.median:.2f}",
            f"{result.engine_us_per_tok.median:.2f}",
            f"{result.cores.median:.2f}",
            f"{result.ttft_ms.median:.1f}",
        )
        for result in report.results
    ]
    size = f"{report.streams} streams of {report.requests} × {report.prompt_len} + {report.output_len} tokens"
    return "\n".join(
        [
            f"{size}, {report.runs} runs in turn, {report.event_loop}; median (min–max)",
            table(header, rows),
            f"coordinator and affinity over round robin, CPU per token: {report.coordinator_ratio.text(3)}",
            str(report.machine.pace),
        ]
    )
