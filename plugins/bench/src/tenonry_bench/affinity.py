"""`tenonry bench affinity`: prefix cache hits of conversations, by load balancer.

Several engines, each with its share of the KV blocks, against one engine that has them all. The worker computes
nothing; the scheduler's blocks and their hashes are real. The counts hardly depend on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError
from tenonry.interfaces.command import Command
from tenonry_bench.conversations import Reuse, Sizes, Turn, enough_blocks, hold, make_conversations
from tenonry_bench.figures import Spread, spread, table
from tenonry_bench.layouts import Layout, started
from tenonry_bench.machine import Machine, describe_machine
from tenonry_bench.settings import (
    check_length,
    count,
    counts,
    engine_config,
    natural,
    refuse,
    settings_of,
    write_report,
)
from tenonry_commands.arguments import add_engine_arguments

BLOCK_SIZE = 16
POLICIES = ("affinity", "round-robin", "least-loaded")


class AffinityResult(msgspec.Struct, kw_only=True):
    """`hit_rate`: cached prompt tokens over prompt tokens, of all turns of a run; `ratio`: to the single engine's in
    the same run. Spreads over runs.
    """

    layout: str
    engines: int
    load_balancing: str
    blocks_per_engine: int
    hit_rate: Spread
    ratio: Spread


class AffinityReport(msgspec.Struct, kw_only=True):
    """`sizes` are tokens, except the counts and the pause; `results` begin with the single engine."""

    bench: str = "affinity"
    sizes: dict[str, float]
    blocks: int
    runs: int
    results: list[AffinityResult]
    settings: dict[str, Any]
    machine: Machine


class AffinityBench(Command):
    """Holds the same conversations with one layout after another."""

    summary = "Prefix-cache hits of conversations by load balancer, compared with a single engine."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        self._add_conversations(parser.add_argument)
        add = parser.add_argument
        add(
            "--engines",
            type=count,
            default=4,
            metavar="N",
            help="Engines that divide the blocks [default: 4].",
        )
        add(
            "--balancing",
            type=policies,
            default=list(POLICIES),
            metavar="NAME,NAME",
            help=f"Load balancers [default: {','.join(POLICIES)}].",
        )
        add(
            "--blocks",
            type=count,
            metavar="N",
            help="KV blocks of all engines together [default: a quarter more than the conversations fill].",
        )
        add(
            "--runs",
            type=count,
            default=3,
            metavar="N",
            help="Repetitions, with new prompts [default: 3].",
        )
        add("--json", metavar="FILE", help="Write the report here.")
        add_engine_arguments(parser, model_positional=False)

    def _add_conversations(self, add: Callable[..., object]) -> None:
        add(
            "--conversations",
            type=count,
            default=64,
            metavar="N",
            help="Concurrent conversations [default: 64].",
        )
        add(
            "--turns",
            type=count,
            default=8,
            metavar="N",
            help="Turns per conversation [default: 8].",
        )
        add(
            "--system-len",
            type=natural,
            default=64,
            metavar="N",
            help="Shared prefix in tokens [default: 64].",
        )
        add(
            "--user-len",
            type=counts,
            default=[30, 120],
            metavar="LOW,HIGH",
            help="Minimum and maximum new tokens per turn [default: 30,120].",
        )
        add(
            "--answer-len",
            type=count,
            default=64,
            metavar="N",
            help="Tokens per answer [default: 64].",
        )
        add(
            "--pause-ms",
            type=natural,
            default=20,
            metavar="N",
            help="Mean pause before a turn in milliseconds [default: 20].",
        )

    def run(self, args: argparse.Namespace) -> int:
        flags = {
            "data_parallel_size": "--engines",
            "load_balancer": "--balancing",
            "num_gpu_blocks_override": "--blocks",
        }
        refuse(args, flags)
        sizes = sizes_from(args)
        rows = max(args.conversations, 256)
        config, facts = engine_config(args, worker="null", max_num_seqs=rows, block_size=BLOCK_SIZE)
        check_length(config, sizes.longest_prompt, sizes.answer)
        if args.max_model_len is None:
            config = config.replaced(max_model_len=sizes.longest_prompt + sizes.answer)
        machine = describe_machine()
        runs = [make_conversations(sizes, run, facts.vocab_size) for run in range(args.runs)]
        total = args.blocks or enough_blocks(
            runs, sizes, args.engines, config.block_size or BLOCK_SIZE
        )
        each = -(-total // args.engines)  # the same for all, so rounded up
        found = {
            layout: measure(
                layout, with_blocks(config, layout, each * args.engines), runs, sizes.answer
            )
            for layout in layouts_for(args.engines, args.balancing)
        }
        report = AffinityReport(
            sizes=sizes._asdict(),
            blocks=each * args.engines,
            runs=args.runs,
            results=summarise(found, each * args.engines),
            settings=settings_of(config),
            machine=machine,
        )
        print(describe(report))
        write_report(args.json, report)
        return 0


def sizes_from(args: argparse.Namespace) -> Sizes:
    """Raises ConfigError for lengths that are none."""
    words = args.user_len
    if len(words) != 2 or not 1 <= words[0] <= words[1]:
        raise ConfigError(
            f"--user-len {','.join(map(str, words))} must be LOW,HIGH with 1 <= LOW <= HIGH"
        )
    if args.engines < 2:
        raise ConfigError(f"--engines {args.engines}: at least 2 are compared with a single one")
    return Sizes(
        args.conversations,
        args.turns,
        args.system_len,
        words[0],
        words[1],
        args.answer_len,
        args.pause_ms / 1e3,
    )


def policies(text: str) -> list[str]:
    """A flag's value: names of policies, with commas between them."""
    names = text.split(",")
    for name in names:
        if name not in POLICIES:
            raise argparse.ArgumentTypeError(f"'{name}' is none of {', '.join(POLICIES)}")
    return names


def layouts_for(engines: int, names: Sequence[str]) -> list[Layout]:
    """The single engine, then each way to choose among several."""
    return [
        Layout("1 engine", 1),
        *(Layout(f"{engines} engines, {name}", engines, name) for name in names),
    ]


def with_blocks(config: EngineConfig, layout: Layout, blocks: int) -> EngineConfig:
    """`blocks` is for all engines of the layout together."""
    return config.replaced(num_gpu_blocks_override=blocks // layout.engines)


def measure(
    layout: Layout, config: EngineConfig, runs: Sequence[Sequence[Sequence[Turn]]], answer: int
) -> list[Reuse]:
    """Cached tokens of each run; each begins with empty caches."""

    async def hold_all() -> list[Reuse]:
        found = []
        for run, conversations in enumerate(runs):
            await engine.reset_prefix_cache()
            found.append(await hold(engine, conversations, answer, run))
        return found

    with started(layout, config) as (engine, _):
        return asyncio.run(hold_all())


def summarise(found: dict[Layout, list[Reuse]], blocks: int) -> list[AffinityResult]:
    """The first layout is the one that the others are compared with; a ratio to nothing counts as 0."""
    single = next(iter(found.values()))
    return [
        AffinityResult(
            layout=layout.name,
            engines=layout.engines,
            load_balancing=layout.balancing,
            blocks_per_engine=blocks // layout.engines,
            hit_rate=spread([reuse.rate for reuse in reuses]),
            ratio=spread(
                [
                    mine.rate / one.rate if one.cached else 0.0
                    for mine, one in zip(reuses, single, strict=True)
                ]
            ),
        )
        for layout, reuses in found.items()
    ]


def describe(report: AffinityReport) -> str:
    """The report for a person."""
    header = ("layout", "blocks per engine", "hit rate", "ratio to 1 engine")
    rows = [
        (
            result.layout,
            str(result.blocks_per_engine),
            result.hit_rate.text(3),
            result.ratio.text(3),
        )
        for result in report.results
    ]
    size = f"{report.sizes['conversations']:g} conversations of {report.sizes['turns']:g} turns"
    return f"{size}, {report.blocks} blocks, {report.runs} runs; median (min–max)\n{table(header, rows)}"
