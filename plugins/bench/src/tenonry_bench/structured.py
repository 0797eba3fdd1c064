"""`tenonry bench structured`: cost of a grammar for its own request, and for the others.

A real model, an engine process, the clients in this process. Each figure has its counterpart without grammars in the
same run, because a busy machine changes both.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec

from tenonry.interfaces.command import Command
from tenonry.sampling_params import OutputKind, SamplingParams, StructuredOutput
from tenonry_bench.figures import Spread, percentile, spread
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

PROMPT_LEN = 32
OUTPUT_LEN = 96
BESIDE_LEN = 2  # tokens of a prompt alongside the stream: their step is not measured
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
PEOPLE = StructuredOutput(json=json.dumps({"type": "array", "items": PERSON, "minItems": 1000}))


class StructuredReport(msgspec.Struct, kw_only=True):
    """Spreads over runs. `gap_ms` and `gap_compiling_ms`: the longest gap between two tokens of one stream, alongside
    `compilations` requests for one token, without and with a schema of `worst_properties` properties that is compiled;
    `grown_ms`: the second less the first. `tpot_ms` and `tpot_schema_ms`: time per token of `streams` streams without
    and with a schema; `tpot_ratio`. `ttft_ms`, `ttft_schema_ms`: the first token of a request alone, without and with a
    new schema of `properties` properties; `later_ms`.
    """

    bench: str = "structured"
    runs: int
    streams: int
    compilations: int
    worst_properties: int
    properties: int
    gap_ms: Spread
    gap_compiling_ms: Spread
    grown_ms: Spread
    compiled_s: Spread
    tpot_ms: Spread
    tpot_schema_ms: Spread
    tpot_ratio: Spread
    ttft_ms: Spread
    ttft_schema_ms: Spread
    later_ms: Spread
    settings: dict[str, Any]
    machine: Machine


class StructuredBench(Command):
    """Drives `AsyncLLM` over a real model."""

    summary = "Structured output: time per token, first token, and gaps of other streams during compilation."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_count_flags(
            parser,
            ("--runs", 3, "Repetitions of each measurement"),
            ("--streams", 64, "Concurrent requests, for the time per token"),
            ("--compilations", 2, "Schemas that are compiled beside the one stream"),
            ("--worst-properties", 6000, "Properties of each of them"),
            ("--properties", 50, "Properties of the schema of the first token"),
        )
        parser.add_argument("--json", metavar="FILE", help="Write the report here.")
        add_engine_arguments(parser, model_positional=False)

    def run(self, args: argparse.Namespace) -> int:
        config, facts = engine_config(args, max_num_seqs=max(args.streams, args.compilations + 1))
        check_length(config, PROMPT_LEN, OUTPUT_LEN)
        machine = describe_machine()
        from tenonry.client.async_llm import AsyncLLM

        engine = AsyncLLM.from_config(config)
        try:
            figures = asyncio.run(_Client(engine, facts.vocab_size).measure(args))
        finally:
            engine.shutdown()
        report = StructuredReport(
            runs=args.runs,
            streams=args.streams,
            compilations=args.compilations,
            worst_properties=args.worst_properties,
            properties=args.properties,
            settings=settings_of(config),
            machine=machine,
            **{name: spread(values) for name, values in figures.items()},
        )
        print(describe(report))
        write_report(args.json, report)
        return 0


def wide_schema(properties: int, tag: str) -> StructuredOutput:
    """An object with many properties, all of them required, whose names begin with `tag`."""
    names = [f"{tag}{place:x}" for place in range(properties)]
    schema = {
        "type": "object",
        "properties": {name: {"type": "null"} for name in names},
        "required": names,
        "additionalProperties": False,
    }
    return StructuredOutput(json=json.dumps(schema, separators=(",", ":")))


class _Client:
    """Sends the requests of all measurements; every schema has unique names, so none is cached."""

    def __init__(self, engine: AsyncLLM, vocab_size: int) -> None:
        self._engine = engine
        self._vocab_size = vocab_size
        self._seed = default_workloads().seed
        self._numbers = itertools.count()

    async def measure(self, args: argparse.Namespace) -> dict[str, list[float]]:
        """The values of each run, by the names of the report."""
        await self._first_token(wide_schema(args.properties, self._tag()))  # starts the backend
        figures: dict[str, list[float]] = {}
        for _ in range(args.runs):
            found = {
                **await self._gaps(args.compilations, args.worst_properties),
                **await self._load(args.streams),
                **await self._first_tokens(args.properties),
            }
            for name, value in found.items():
                figures.setdefault(name, []).append(value)
        return figures

    async def _gaps(self, compilations: int, properties: int) -> dict[str, float]:
        async def short(spec: StructuredOutput | None) -> None:
            await self._first_token(spec, BESIDE_LEN)

        schemas = [wide_schema(properties, self._tag()) for _ in range(compilations)]
        started = time.perf_counter()
        beside = await self._longest_gap(asyncio.gather(*map(short, schemas)))
        seconds = time.perf_counter() - started
        # As many as with schemas: the longest of more gaps is longer, whatever else runs.
        plain = (short(None) for _ in range(compilations))
        without = await self._longest_gap(asyncio.gather(asyncio.sleep(seconds), *plain))
        return {
            "gap_ms": 1e3 * without,
            "gap_compiling_ms": 1e3 * beside,
            "grown_ms": 1e3 * (beside - without),
            "compiled_s": seconds,
        }

    async def _longest_gap(self, until: asyncio.Future[Any]) -> float:
        """Seconds, of streams one after another until the future is done."""
        longest = 0.0
        while not until.done():
            times = [moment async for moment in self._tokens(None, OUTPUT_LEN)]
            longest = max(longest, *(after - before for before, after in itertools.pairwise(times)))
        await until
        return longest

    async def _load(self, streams: int) -> dict[str, float]:
        plain = await self._time_per_token(streams, None)
        bound = await self._time_per_token(streams, PEOPLE)
        return {"tpot_ms": 1e3 * plain, "tpot_schema_ms": 1e3 * bound, "tpot_ratio": bound / plain}

    async def _time_per_token(self, streams: int, spec: StructuredOutput | None) -> float:
        async def one() -> float:
            return time_per_token([moment async for moment in self._tokens(spec, OUTPUT_LEN)])

        return percentile(await asyncio.gather(*(one() for _ in range(streams))), 0.5)

    async def _first_tokens(self, properties: int) -> dict[str, float]:
        plain = []
        bound = []
        for _ in range(9):
            plain.append(await self._first_token(None))
            bound.append(await self._first_token(wide_schema(properties, self._tag())))
        before = 1e3 * statistics.median(plain)
        after = 1e3 * statistics.median(bound)
        return {"ttft_ms": before, "ttft_schema_ms": after, "later_ms": after - before}

    async def _first_token(
        self, spec: StructuredOutput | None, prompt_len: int = PROMPT_LEN
    ) -> float:
        started = time.perf_counter()
        (moment,) = [moment async for moment in self._tokens(spec, 1, prompt_len)]
        return moment - started

    async def _tokens(
        self, spec: StructuredOutput | None, output_len: int, prompt_len: int = PROMPT_LEN
    ) -> AsyncIterator[float]:
        """When each token arrived; those of one output arrive together."""
        number = next(self._numbers)
        (prompt,) = random_prompts(1, prompt_len, self._seed + number, self._vocab_size)
        params = SamplingParams(
            temperature=0.0,
            max_tokens=output_len,
            ignore_eos=spec is None,
            structured_output=spec,
            output_kind=OutputKind.DELTA,
        )
        async for output in self._engine.generate(
            {"prompt_token_ids": prompt}, params, str(number)
        ):
            moment = time.perf_counter()
            for _ in output.outputs[0].token_ids:
                yield moment

    def _tag(self) -> str:
        return f"{next(self._numbers):x}z"


def time_per_token(times: list[float]) -> float:
    """Seconds per token that came after the first output, from when each token arrived: outputs hold several tokens
    where the worker decodes in rounds, or where the client reads late.
    """
    first, last = times[0], times[-1]
    later = sum(moment > first for moment in times)
    return (last - first) / max(1, later)


def describe(report: StructuredReport) -> str:
    """The report for a person."""
    beside = f"the same with schemas of {report.worst_properties} properties"
    lines = [
        f"{report.runs} runs; median (min–max), ms",
        f"  longest gap beside {report.compilations} requests             {report.gap_ms.text(1)}",
        f"  {beside:41} {report.gap_compiling_ms.text(1)}",
        f"    longer by                               {report.grown_ms.text(1)}",
        f"  time per token, {report.streams:>3} streams              {report.tpot_ms.text(3)}",
        f"  the same with a schema                    {report.tpot_schema_ms.text(3)}",
        f"    ratio                                   {report.tpot_ratio.text(3)}",
        f"  first token                               {report.ttft_ms.text(1)}",
        f"  the same with {report.properties:>4} new properties         {report.ttft_schema_ms.text(1)}",
        f"    later by                                {report.later_ms.text(1)}",
    ]
    return "\n".join([*lines, str(report.machine.pace)])
