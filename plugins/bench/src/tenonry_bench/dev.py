"""`tenonry bench dev`: seconds from the save of a scheduler to its verdict and to its swap, under streams.

A server with the worker `null` runs the scheduler's file; `tenonry plugins dev` watches it. Client process.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from tenonry.errors import TenonryError
from tenonry.interfaces.command import Command
from tenonry_bench.figures import Spread, spread
from tenonry_bench.load import Load
from tenonry_bench.machine import Machine, describe_machine
from tenonry_bench.own_server import start_own_server
from tenonry_bench.settings import add_count_flags, write_report
from tenonry_bench.sse import Client, Endpoint
from tenonry_bench.workload import random_prompts

SCHEDULER = """from tenonry_scheduler_batching.scheduler import BatchingScheduler


class Mine(BatchingScheduler):
    SAVED = {number}
"""
START_S = 120.0
LINE_S = 120.0
REQUEST_S = 120.0
VOCAB_SIZE = 200


class DevReport(msgspec.Struct, kw_only=True):
    """Spreads over saves, in seconds; `lost`: streams that failed or were cut short, by their error."""

    bench: str = "dev"
    streams: int
    output_len: int
    verdict_s: Spread
    swapped_s: Spread
    completed: int
    lost: dict[str, int]
    machine: Machine


class DevBench(Command):
    """Saves a scheduler several times while streams run."""

    summary = (
        "Seconds from a save to the verdict and the swap of `tenonry plugins dev`, under streams."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_count_flags(
            parser,
            ("--streams", 64, "Concurrent requests"),
            ("--output-len", 200, "New tokens"),
            ("--step-ms", 10, "Milliseconds of a step on the pretended device"),
            ("--runs", 5, "Saves"),
        )
        parser.add_argument("--json", metavar="FILE", help="Write the report here.")

    def run(self, args: argparse.Namespace) -> int:
        machine = describe_machine()
        with tempfile.TemporaryDirectory() as folder:
            times, records = asyncio.run(measure(args, Path(folder, "mine.py")))
        report = DevReport(
            streams=args.streams,
            output_len=args.output_len,
            verdict_s=spread([verdict for verdict, _ in times]),
            swapped_s=spread([swapped for _, swapped in times]),
            completed=sum(error is None for error in records),
            lost=dict(Counter(error for error in records if error is not None)),
            machine=machine,
        )
        print(describe(report))
        write_report(args.json, report)
        return 0


async def measure(
    args: argparse.Namespace, file: Path
) -> tuple[list[tuple[float, float]], list[str | None]]:
    """Seconds to verdict and swap of each save, and the error of each stream, None for one that ended well."""
    key = secrets.token_hex(8)
    save(file, 0)
    flags = ["--scheduler", f"{file}:Mine", "--worker", "null", "--enable-operator-routes"]
    flags += [
        "--worker-option",
        f"step_ms={args.step_ms}",
        "--max-num-seqs",
        str(args.streams + 16),
    ]
    environment = {**os.environ, "TENONRY_API_KEY": key}
    server = start_own_server("demo", 0, flags, environment)
    try:
        url, _ = await server.ready(START_S)
        load = Load(
            Client(Endpoint.parse(url), key), "demo", args.streams, None, timeout_s=REQUEST_S
        )
        done = asyncio.Event()
        streams = [
            asyncio.create_task(stream(load, number, args.output_len, done))
            for number in range(args.streams)
        ]
        try:
            times = await save_often(file, url, environment, args.runs)
        finally:
            done.set()
            found = await asyncio.gather(*streams)
        return times, list(itertools.chain(*found))
    finally:
        server.stop()


async def stream(load: Load, number: int, output_len: int, done: asyncio.Event) -> list[str | None]:
    """Requests one after another until `done`; the error of each."""
    errors: list[str | None] = []
    while not done.is_set():
        prompt = random_prompts(1, 8, number, VOCAB_SIZE)[0]
        errors += [record.error for record in (await load.run([prompt], output_len)).records]
    return errors


async def save_often(
    file: Path, url: str, environment: dict[str, str], runs: int
) -> list[tuple[float, float]]:
    """Seconds from each save to the line with the verdict, and to that of the swap, which its probes precede."""
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "tenonry", "plugins", "dev", str(file), "--url", url],
        env=environment,
        stdout=subprocess.PIPE,
    )
    times = []
    try:
        for run in range(runs + 1):
            start = time.monotonic()
            if run:
                save(file, run)
            verdict = await line_of(process, "holds: ") - start
            times.append((verdict, await line_of(process, "swapped in ") - start))
    finally:
        process.send_signal(signal.SIGINT)  # it removes its folder then
        await process.wait()
    return times[1:]  # the first one is the start of the command


def save(file: Path, number: int) -> None:
    """Write the scheduler; each number is another class."""
    new = file.with_suffix(".new")
    new.write_text(SCHEDULER.format(number=number), "utf-8")
    new.replace(file)


async def line_of(process: asyncio.subprocess.Process, beginning: str) -> float:
    """The moment of the next line. Raises TenonryError for another one than expected."""
    output: Any = process.stdout
    async with asyncio.timeout(LINE_S):
        line = (await output.readline()).decode().rstrip()
    if not line.startswith(beginning):
        raise TenonryError(f"`tenonry plugins dev` wrote '{line}' instead of '{beginning}…'")
    return time.monotonic()


def describe(report: DevReport) -> str:
    """The report for a person."""
    lines = [
        f"{report.verdict_s.n} saves under {report.streams} streams; median (min–max)",
        f"  save to verdict, s   {report.verdict_s.text(2)}",
        f"  save to swapped, s   {report.swapped_s.text(2)}",
        f"  streams completed    {report.completed}",
        f"  streams lost         {sum(report.lost.values())}",
        *(f"    {number} × {error}" for error, number in report.lost.items()),
    ]
    return "\n".join([*lines, str(report.machine.pace)])
