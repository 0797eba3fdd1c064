"""`tenonry bench restore`: first token of a prompt whose K/V a connector restores, compared with a computed one.

A real model, an engine process, one request at a time. Each run computes a new prompt and then requests it again; the
prefix cache is off, so only the connector has it.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import TYPE_CHECKING, Any

import msgspec

from tenonry.errors import ConfigError
from tenonry.interfaces.command import Command
from tenonry.sampling_params import SamplingParams
from tenonry_bench.figures import Spread, spread
from tenonry_bench.machine import Machine, describe_machine
from tenonry_bench.settings import (
    add_count_flags,
    check_length,
    engine_config,
    settings_of,
    write_report,
)
from tenonry_bench.workload import default_workloads, random_prompts
from tenonry_commands.arguments import add_engine_arguments

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM

RUNS = 5
TOKENS = 1024
TRIES = 20  # a connector may write what it saves a little later
PAUSE_S = 0.2


class RestoreReport(msgspec.Struct, kw_only=True):
    """Spreads over runs: milliseconds to the first token of a prompt of `tokens` tokens and one more, and their ratio.

    `restored`: tokens that the connector restored, in every run.
    """

    bench: str = "restore"
    runs: int
    tokens: int
    restored: int
    computed_ms: Spread
    restored_ms: Spread
    speedup: Spread
    settings: dict[str, Any]
    machine: Machine


class RestoreBench(Command):
    """Drives `AsyncLLM` over a real model and a KV connector."""

    summary = "KV connectors: first token of a restored prompt compared with a computed one."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_count_flags(
            parser,
            ("--runs", RUNS, "Prompts"),
            ("--tokens", TOKENS, "Tokens of a prompt that are to be restored"),
        )
        parser.add_argument("--json", metavar="FILE", help="Write the report here.")
        add_engine_arguments(parser, model_positional=False)

    def run(self, args: argparse.Namespace) -> int:
        config, facts = engine_config(args, kv_connector="host", enable_prefix_caching=False)
        check_length(config, args.tokens + 1, 1)
        machine = describe_machine()
        from tenonry.client.async_llm import AsyncLLM

        engine = AsyncLLM.from_config(config)
        try:
            measured = asyncio.run(_measure(engine, facts.vocab_size, args.runs, args.tokens))
        finally:
            engine.shutdown()
        computed, restored, brought = measured
        pairs = zip(computed, restored, strict=True)
        report = RestoreReport(
            runs=args.runs,
            tokens=args.tokens,
            restored=brought,
            computed_ms=spread([1e3 * seconds for seconds in computed]),
            restored_ms=spread([1e3 * seconds for seconds in restored]),
            speedup=spread([before / after for before, after in pairs]),
            settings=settings_of(config),
            machine=machine,
        )
        print(describe(report))
        write_report(args.json, report)
        return 0


async def _measure(
    engine: AsyncLLM, vocab_size: int, runs: int, tokens: int
) -> tuple[list[float], list[float], int]:
    """(seconds computed, seconds restored, tokens restored at least)."""
    prompts = random_prompts(runs + 1, tokens + 1, default_workloads().seed, vocab_size)
    computed = []
    restored = []
    brought = tokens
    for number, prompt in enumerate(prompts):
        before, _ = await _first_token(engine, prompt, f"{number}")
        after, found = await _restored(engine, prompt, f"{number} again")
        if number == 0:
            continue  # the first one warms up
        computed.append(before)
        restored.append(after)
        brought = min(brought, found)
    return computed, restored, brought


async def _restored(engine: AsyncLLM, prompt: list[int], name: str) -> tuple[float, int]:
    """The same once the connector has it. Raises ConfigError if it never does."""
    for attempt in range(TRIES):
        seconds, found = await _first_token(engine, prompt, f"{name} {attempt}")
        if found:
            return seconds, found
        await asyncio.sleep(PAUSE_S)
    raise ConfigError(
        f"the KV connector brought nothing of a prompt of {len(prompt)} tokens in {TRIES} tries; give it more room"
    )


async def _first_token(engine: AsyncLLM, prompt: list[int], name: str) -> tuple[float, int]:
    """(seconds to the first token, prompt tokens that were not computed)."""
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    started = time.perf_counter()
    outputs = [
        output async for output in engine.generate({"prompt_token_ids": prompt}, params, name)
    ]
    return time.perf_counter() - started, outputs[-1].num_cached_tokens or 0


def describe(report: RestoreReport) -> str:
    """The report for a person."""
    lines = [
        f"{report.runs} prompts of {report.tokens} + 1 tokens; median (min–max)",
        f"  first token, computed   {report.computed_ms.text(1)} ms",
        f"  first token, restored   {report.restored_ms.text(1)} ms ({report.restored} tokens or more)",
        f"    times as fast         {report.speedup.text(1)}",
    ]
    return "\n".join([*lines, str(report.machine.pace)])
