"""`tenonry bench helpers`: light requests of one client alongside heavy ones of another, over HTTP.

A real server as a child, both clients in this process. All contents of requests are new, so no cache answers them.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import shlex
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import msgspec

from tenonry.errors import TenonryError
from tenonry.interfaces.command import Command
from tenonry_bench.figures import percentile, table
from tenonry_bench.helper_mixes import Mix, images, schemas, texts
from tenonry_bench.machine import Machine, describe_machine
from tenonry_bench.own_server import start_own_server
from tenonry_bench.settings import add_count_flags, count, write_report
from tenonry_bench.sse import Client, Endpoint
from tenonry_bench.vision_model import write_vision_model

HEAVY, LIGHT = "heavy", "light"  # API keys of the two clients
START_TIMEOUT_S = 600.0
OK = 200
LEAST_LIGHT = 3  # per run, also where the heavy requests end early


class MixResult(msgspec.Struct, kw_only=True):
    """One mix over all runs. `median_s` and `max_s`: latency of the `num_light` light requests that were sent alongside
    the heavy ones, one after another; `alone_s`: median of such requests before. `heavy_s`: longest run; `statuses`:
    answers to heavy requests by HTTP status, 400 if one exceeded a limit.
    """

    mix: str
    heavy: int
    median_s: float
    max_s: float
    alone_s: float
    num_light: int
    heavy_s: float
    statuses: dict[str, int]


class HelpersReport(msgspec.Struct, kw_only=True):
    """Report of `tenonry bench helpers`."""

    bench: str = "helpers"
    runs: int
    server_args: str
    results: list[MixResult]
    machine: Machine


class HelpersBench(Command):
    """Starts a server of a tiny model that reads images."""

    summary = (
        "Latency of one client's small requests during another client's heavy ones, over HTTP."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_count_flags(
            parser,
            ("--runs", 3, "Repetitions of each mix"),
            ("--schemas", 8, "Heavy schemas at a time"),
            ("--properties", 1500, "Optional properties of each of them"),
            ("--images", 6, "Heavy images at a time"),
            ("--megapixels", 49, "Size of each of them"),
            ("--texts", 6, "Heavy texts at a time"),
            ("--chars", 4_000_000, "Characters of each of them"),
        )
        parser.add_argument(
            "--image-bytes",
            type=count,
            default=8 << 20,
            metavar="N",
            help="File size of a heavy image in bytes [default: 8 MiB].",
        )
        parser.add_argument(
            "--server-args",
            default="",
            metavar="TEXT",
            help="Flags of `tenonry serve` as one argument.",
        )
        parser.add_argument("--json", metavar="FILE", help="Write the report here.")

    def run(self, args: argparse.Namespace) -> int:
        machine = describe_machine()
        mixes = [
            schemas(args.schemas, args.properties),
            images(args.images, args.megapixels, args.image_bytes),
            texts(args.texts, args.chars),
        ]
        results = asyncio.run(_measured(mixes, args))
        report = HelpersReport(
            runs=args.runs, server_args=args.server_args, results=results, machine=machine
        )
        print(describe(report))
        write_report(args.json, report)
        return 0


class _Answer(NamedTuple):
    """Status and body of an answer, and the seconds until its end."""

    status: int
    body: bytes
    seconds: float


async def _measured(mixes: list[Mix], args: argparse.Namespace) -> list[MixResult]:
    with tempfile.TemporaryDirectory() as folder:
        model = write_vision_model(Path(folder))
        words = [
            *("--load-format", "dummy", "--device", "cpu", "--max-images", "1"),
            *("--api-key", HEAVY, "--api-key", LIGHT),
            *("--io-processor-option", f"max_prompt_chars={args.chars + 4096}"),
            *shlex.split(args.server_args),
        ]
        server = start_own_server(str(model), arguments=words)
        try:
            base_url, _ = await server.ready(START_TIMEOUT_S)
            clients = _Clients(base_url)
            return [await clients.measure(mix, args.runs) for mix in mixes]
        finally:
            server.stop()


class _Clients:
    """The two clients; every request has a unique number."""

    def __init__(self, base_url: str) -> None:
        endpoint = Endpoint.parse(base_url)
        self._clients = {key: Client(endpoint, key) for key in (HEAVY, LIGHT)}
        self._numbers = itertools.count(1)

    async def measure(self, mix: Mix, runs: int) -> MixResult:
        """Run both clients. Raises TenonryError if a light request fails."""
        await self._light(mix)  # starts the helper
        alone = [await self._light(mix) for _ in range(LEAST_LIGHT)]
        beside: list[float] = []
        statuses: Counter[str] = Counter()
        heavy_s = 0.0
        for _ in range(runs):
            bodies = [mix.heavy(next(self._numbers)) for _ in range(mix.num_heavy)]
            heavy = asyncio.gather(*(self._send(HEAVY, mix.path, body) for body in bodies))
            first = len(beside)
            while not heavy.done() or len(beside) - first < LEAST_LIGHT:
                beside.append(await self._light(mix))
            answers = await heavy
            statuses.update(str(answer.status) for answer in answers)
            heavy_s = max(heavy_s, *(answer.seconds for answer in answers))
        return MixResult(
            mix=mix.name,
            heavy=mix.num_heavy,
            median_s=percentile(beside, 0.5),
            max_s=max(beside),
            alone_s=percentile(alone, 0.5),
            num_light=len(beside),
            heavy_s=heavy_s,
            statuses=dict(statuses),
        )

    async def _light(self, mix: Mix) -> float:
        answer = await self._send(LIGHT, mix.path, mix.light(next(self._numbers)))
        if answer.status != OK:
            text = answer.body.decode("utf-8", "replace")
            raise TenonryError(f"{mix.name}: a light request failed: {answer.status} {text}")
        return answer.seconds

    async def _send(self, client: str, path: str, body: bytes) -> _Answer:
        started = time.perf_counter()
        status, answer = await self._clients[client].post(path, body)
        return _Answer(status, answer, time.perf_counter() - started)


def describe(report: HelpersReport) -> str:
    """The report for a person."""
    header = (
        "mix",
        "light, median s",
        "max s",
        "alone s",
        "n",
        "heavy",
        "all of them, s",
        "status",
    )
    rows = [
        (
            result.mix,
            f"{result.median_s:.3f}",
            f"{result.max_s:.3f}",
            f"{result.alone_s:.3f}",
            str(result.num_light),
            str(result.heavy),
            f"{result.heavy_s:.1f}",
            ", ".join(f"{number} × {status}" for status, number in result.statuses.items()),
        )
        for result in report.results
    ]
    return f"{report.runs} runs\n{table(header, rows)}\n{report.machine.pace}"
