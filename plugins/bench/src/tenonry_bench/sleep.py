"""`tenonry bench sleep`: time of an engine to fall asleep and to wake up, and memory that it frees.

One `LLM` in this process, on a real model. Level 1 frees the KV cache, level 2 the weights as well, which are read
again from the page cache.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from tenonry.interfaces.command import Command
from tenonry.sampling_params import SamplingParams
from tenonry_bench.figures import Spread, spread
from tenonry_bench.machine import Machine, describe_machine
from tenonry_bench.settings import add_count_flags, engine_config, settings_of, write_report
from tenonry_bench.throughput import set_threads
from tenonry_commands.arguments import add_engine_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenonry.client.llm import LLM

RUNS = 5
LEVELS = (1, 2)
PROMPT = list(range(3, 67))
MIB = 1 << 20


class LevelFigures(msgspec.Struct, kw_only=True):
    """Spreads over runs: seconds, and MiB of resident memory freed by sleeping."""

    level: int
    sleep_s: Spread
    wake_s: Spread
    freed_mib: Spread


class SleepReport(msgspec.Struct, kw_only=True):
    """One entry per level. `same`: whether the tokens after each wake-up were those before."""

    bench: str = "sleep"
    model: str
    levels: list[LevelFigures]
    same: bool
    settings: dict[str, Any]
    machine: Machine


class SleepBench(Command):
    """Drives one `LLM`."""

    summary = "Sleep and wake-up: seconds and freed memory."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_count_flags(parser, ("--runs", RUNS, "Times asleep per level"))
        parser.add_argument("--threads", type=int, metavar="N", help="Threads of torch.")
        parser.add_argument("--json", metavar="FILE", help="Write the report here.")
        add_engine_arguments(parser, model_positional=False)

    def run(self, args: argparse.Namespace) -> int:
        set_threads(args.threads)
        config, _ = engine_config(args, io_processor="none", max_num_seqs=4)
        machine = describe_machine()
        from tenonry.client.llm import LLM

        with LLM(config=config) as llm:
            first = tokens(llm)
            turns = {level: [turn(llm, level) for _ in range(args.runs)] for level in LEVELS}
        report = SleepReport(
            model=config.model,
            levels=[figures(level, each) for level, each in turns.items()],
            same=all(made == first for each in turns.values() for *_, made in each),
            settings=settings_of(config),
            machine=machine,
        )
        print(describe(report))
        write_report(args.json, report)
        return 0


def tokens(llm: LLM) -> list[int]:
    """A short greedy answer; its pages are then resident."""
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, detokenize=False)
    [output] = llm.generate([{"prompt_token_ids": PROMPT}], params, use_tqdm=False)
    return list(output.outputs[0].token_ids)


def turn(llm: LLM, level: int) -> tuple[float, float, float, list[int]]:
    """(seconds to sleep, seconds to wake up, MiB freed, tokens afterwards)."""
    process = psutil.Process()
    before = process.memory_info().rss
    began = time.perf_counter()
    llm.sleep(level)
    asleep = time.perf_counter()
    freed = (before - process.memory_info().rss) / MIB
    woken = time.perf_counter()
    llm.wake_up()
    awake = time.perf_counter()
    return asleep - began, awake - woken, freed, tokens(llm)


def figures(level: int, turns: Sequence[tuple[float, float, float, list[int]]]) -> LevelFigures:
    """Sum the turns of a level up."""
    return LevelFigures(
        level=level,
        sleep_s=spread([each[0] for each in turns]),
        wake_s=spread([each[1] for each in turns]),
        freed_mib=spread([each[2] for each in turns]),
    )


def describe(report: SleepReport) -> str:
    """The report for a person."""
    lines = [f"{report.model}; median (min–max)"]
    lines += [
        f"  level {each.level}: asleep after {each.sleep_s.text(3)} s, awake after {each.wake_s.text(3)} s, "
        f"{each.freed_mib.text(0)} MiB given back"
        for each in report.levels
    ]
    lines.append("tokens identical" if report.same else "TOKENS DIFFER after a wake-up")
    return "\n".join([*lines, str(report.machine.pace)])
