"""`tenonry bench overhead`: CPU time per token that decision records, hook modules and stat loggers add.

Each arm is an `AsyncLLM` with its own flags over the worker `null`. All run at the same time and are measured
interleaved, so that a run and the run that it is compared with meet the same machine; each start of them all gives one
ratio per arm, since processes differ by some percent for as long as they live.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import shlex
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tenonry.cli import VerbParser
from tenonry.errors import ConfigError
from tenonry.interfaces.command import Command
from tenonry_bench.data_parallel import us_per_token
from tenonry_bench.engine import WARM_UP_STREAMS, WARM_UP_TOKENS, event_loop
from tenonry_bench.figures import Spread, spread, table
from tenonry_bench.layouts import alternated
from tenonry_bench.machine import Machine, describe_machine
from tenonry_bench.processes import below
from tenonry_bench.settings import add_count_flags, check_length, engine_config, write_report
from tenonry_bench.streams import Point, StreamClient
from tenonry_commands.arguments import add_engine_arguments

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM

PLAIN = "plain"
CONTROL = "plain again"  # its ratio is the noise of the measurement
HOOK_MODULES = 10
LOGGERS = ("console", "jsonl", "prometheus")
HOOK_MODULE = """from tenonry import hookimpl

@hookimpl
def tenonry_engine_ready(info):
    pass
"""
IDLE_LOGGER = """from tenonry.interfaces.stat_logger import StatLogger

class Idle{number}(StatLogger):
    def record(self, record):
        pass
"""


class Arm(NamedTuple):
    """`words`: flags of an engine. `path`: folder with distributions that only this arm finds."""

    name: str
    words: tuple[str, ...] = ()
    path: str = ""


Round = dict[str, Point]


class ArmResult(msgspec.Struct, kw_only=True):
    """Spreads over starts, of medians over runs; `ratio` is CPU time over that of the first arm, run by run."""

    arm: str
    words: tuple[str, ...]
    us_per_tok: Spread
    frontend_us_per_tok: Spread
    engine_us_per_tok: Spread
    ratio: Spread


class OverheadReport(msgspec.Struct, kw_only=True):
    """CPU times are user and system together, of all processes."""

    bench: str = "overhead"
    streams: int
    prompt_len: int
    output_len: int
    starts: int
    runs: int
    results: list[ArmResult]
    machine: Machine


class OverheadBench(Command):
    """Compares arms by CPU time."""

    summary = "CPU time per token added by decision records, hook modules and stat loggers."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--arm",
            action="append",
            type=parse_arm,
            metavar="NAME=FLAGS",
            help="Engine flags to compare with those of the first arm [default: plain, records, "
            "hook modules, loggers].",
        )
        parser.add_argument(
            "--engine-args",
            default="",
            metavar="TEXT",
            help="Engine flags of all arms, as one text.",
        )
        add_count_flags(
            parser,
            ("--streams", 256, "Concurrent requests"),
            ("--prompt-len", 32, "Prompt tokens"),
            ("--output-len", 128, "New tokens"),
            ("--starts", 8, "Starts of all arms"),
            ("--runs", 40, "Repetitions after each start"),
        )
        parser.add_argument("--json", metavar="FILE", help="Write the report here.")

    def run(self, args: argparse.Namespace) -> int:
        machine = describe_machine()
        _, factory = event_loop("auto")
        shared = shlex.split(args.engine_args)
        with tempfile.TemporaryDirectory() as folder:
            arms = args.arm or default_arms(Path(folder))
            if len({arm.name for arm in arms}) < max(2, len(arms)):
                raise ConfigError("--arm: give at least two arms with different names")
            starts = []
            for _ in range(args.starts):
                with (
                    contextlib.ExitStack() as running,
                    asyncio.Runner(loop_factory=factory) as loop,
                ):
                    clients = {
                        arm.name: running.enter_context(client(arm, shared, args)) for arm in arms
                    }
                    starts.append(loop.run(measure(clients, args)))
                    gc.unfreeze()
        report = OverheadReport(
            streams=args.streams,
            prompt_len=args.prompt_len,
            output_len=args.output_len,
            starts=args.starts,
            runs=args.runs,
            results=[summarise(arm, arms[0], starts) for arm in arms],
            machine=machine,
        )
        print(describe(report))
        write_report(args.json, report)
        return 0


@contextlib.contextmanager
def client(arm: Arm, shared: Sequence[str], args: argparse.Namespace) -> Iterator[StreamClient]:
    """A client of the arm's engine, which counts the processes that came with it."""
    parser = VerbParser("tenonry bench overhead --arm")
    before = below()
    with on_path(arm.path):
        add_engine_arguments(parser, model_positional=False)
        config, facts = engine_config(
            parser.parse_args([*shared, *arm.words]),
            worker="null",
            max_num_seqs=max(args.streams, 256),
            max_num_batched_tokens=8192,
            max_num_queued_reqs=max(4096, args.streams),
        )
        check_length(config, args.prompt_len, args.output_len)
        from tenonry.client.async_llm import AsyncLLM

        engine: AsyncLLM = AsyncLLM.from_config(config)
    try:
        processes = [process for process in below() if process not in before]
        yield StreamClient(engine, facts.vocab_size, args.prompt_len, processes)
    finally:
        engine.shutdown()


@contextlib.contextmanager
def on_path(folder: str) -> Iterator[None]:
    """Let this process and those that it starts find the distributions of a folder."""
    if not folder:
        yield
        return
    variable = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, variable]))
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        if variable is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = variable


async def measure(clients: dict[str, StreamClient], args: argparse.Namespace) -> list[Round]:
    """Warm all up, then the runs, interleaved over all arms."""
    for each in clients.values():
        await each.point(
            min(args.streams, WARM_UP_STREAMS), min(args.output_len, WARM_UP_TOKENS), seed=7
        )
    gc.collect()
    gc.freeze()
    return [
        {
            name: await clients[name].point(args.streams, args.output_len, seed=100 + run)
            for name in alternated([*clients], run)
        }
        for run in range(args.runs)
    ]


def parse_arm(text: str) -> Arm:
    """A flag's value: `NAME=FLAGS`; FLAGS may be empty."""
    name, found, words = text.partition("=")
    if not (name and found):
        raise argparse.ArgumentTypeError(f"'{text}' must look like NAME=FLAGS")
    return Arm(name, tuple(shlex.split(words)))


def default_arms(folder: Path) -> list[Arm]:
    """The arms whose bounds are documented; what they write and import is in `folder`."""
    hooks = folder / "hooks"
    write_hook_modules(hooks, HOOK_MODULES)
    idle: list[str] = []
    for number in range(3):
        file = folder / f"idle{number}.py"
        file.write_text(IDLE_LOGGER.format(number=number), "utf-8")
        idle += ["--stat-logger", f"{file}:Idle{number}"]
    loggers = [word for name in LOGGERS for word in ("--stat-logger", name)]
    loggers += ["--stat-logger-option", f"jsonl.path={folder / 'requests.jsonl'}"]
    return [
        Arm(PLAIN),
        Arm(CONTROL),
        Arm("decision records", ("--decision-log", str(folder / "decisions.log"))),
        Arm(f"{HOOK_MODULES} idle hook modules", path=str(hooks)),
        Arm(f"{HOOK_MODULES} hook modules, 3 idle loggers", tuple(idle), str(hooks)),
        Arm(", ".join(LOGGERS), tuple(loggers)),
    ]


def write_hook_modules(folder: Path, count: int) -> None:
    """Write a distribution with `count` hook modules, as an installer would leave it."""
    info = folder / "idle_hooks-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: idle-hooks\nVersion: 1\n", "utf-8")
    names = [f"idle_hooks_{number}" for number in range(count)]
    for name in names:
        (folder / f"{name}.py").write_text(HOOK_MODULE, "utf-8")
    lines = "".join(f"{name} = {name}\n" for name in names)
    (info / "entry_points.txt").write_text(f"[tenonry.plugins]\n{lines}", "utf-8")


def summarise(arm: Arm, first: Arm, starts: Sequence[list[Round]]) -> ArmResult:
    """One arm over all starts. Ratios are run by run, since a slowdown of the machine affects neighbouring runs."""

    def medians(read: Callable[[Round], float]) -> Spread:
        return spread([statistics.median(map(read, rounds)) for rounds in starts])

    def per_token(read: Callable[[Point], float]) -> Spread:
        return medians(lambda one: 1e6 * read(one[arm.name]) / one[arm.name].tokens)

    return ArmResult(
        arm=arm.name,
        words=arm.words,
        us_per_tok=medians(lambda one: us_per_token(one[arm.name])),
        frontend_us_per_tok=per_token(lambda point: point.frontend_cpu_s),
        engine_us_per_tok=per_token(lambda point: point.engine_cpu_s),
        ratio=medians(lambda one: us_per_token(one[arm.name]) / us_per_token(one[first.name])),
    )


def describe(report: OverheadReport) -> str:
    """The report for a person."""
    size = f"{report.streams} streams of {report.prompt_len} + {report.output_len} tokens"
    header = ("arm", "CPU µs/token", "front end", "engine", "ratio to the first")
    rows: list[tuple[Any, ...]] = [
        (
            each.arm,
            each.us_per_tok.text(3),
            f"{each.frontend_us_per_tok.median:.3f}",
            f"{each.engine_us_per_tok.median:.3f}",
            each.ratio.text(3),
        )
        for each in report.results
    ]
    first = f"{size}, {report.starts} starts of {report.runs} runs; median (min–max) over starts"
    return "\n".join([first, table(header, rows), str(report.machine.pace)])
