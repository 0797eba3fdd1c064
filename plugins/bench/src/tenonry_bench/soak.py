"""`tenonry bench soak`: engines are killed at random while streams run, and every token is compared.

The measuring process is the front end, which restarts engines without limit. Each prompt is completed once without a
fault; after that its streams must get the same tokens, whatever dies during them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from tenonry.errors import TenonryError
from tenonry.interfaces.command import Command
from tenonry.sampling_params import OutputKind, SamplingParams
from tenonry_bench.engine import event_loop
from tenonry_bench.figures import percentile, table
from tenonry_bench.machine import Machine, describe_machine
from tenonry_bench.processes import below
from tenonry_bench.settings import (
    add_count_flags,
    check_length,
    engine_config,
    settings_of,
    write_report,
)
from tenonry_commands.arguments import add_engine_arguments

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM

FAULTS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
STOPPED_S = 1.0
AS_OFTEN_AS_IT_TAKES = 1_000_000
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - it is only listed
POLL_S = 0.02


class Residue(msgspec.Struct, frozen=True):
    """Resources of this process: child processes, files and sockets, names in shared memory, resident MiB."""

    processes: int
    files: int
    shared_memory: int
    rss_mib: float


class Ledger(msgspec.Struct):
    """Results of streams. `diverged`: got other tokens than without faults; `short` and `long`: got fewer or more;
    `failed`: ended with an error, whose texts are in `errors`.
    """

    streams: int = 0
    tokens: int = 0
    diverged: int = 0
    short: int = 0
    long: int = 0
    failed: int = 0
    errors: list[str] = []

    @property
    def is_clean(self) -> bool:
        return self.streams > 0 and not (self.diverged + self.short + self.long + self.failed)


class SoakReport(msgspec.Struct, kw_only=True):
    """`silence_p50_s`, `silence_max_s`: of each fault, the longest pause of a stream between two tokens."""

    bench: str = "soak"
    seconds: float
    faults: dict[str, int]
    ledger: Ledger
    silence_p50_s: float
    silence_max_s: float
    before: Residue
    after: Residue
    settings: dict[str, Any]
    machine: Machine


class SoakBench(Command):
    """Drives `AsyncLLM` while engines die."""

    summary = (
        "Kill engines at random under load, and compare all streams with a run without faults."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_count_flags(
            parser,
            ("--seconds", 60, "How long"),
            ("--every", 10, "Seconds between two faults"),
            ("--streams", 64, "Concurrent requests"),
            ("--prompt-len", 32, "Prompt tokens"),
            ("--output-len", 64, "New tokens"),
            ("--draw", 1, "Seed of prompts and faults"),
        )
        parser.add_argument(
            "--faults",
            nargs="+",
            choices=FAULTS,
            default=["kill"],
            help="Faults: kill sends SIGKILL to an engine, stop SIGSTOP for a second [default: kill].",
        )
        parser.add_argument("--json", metavar="FILE", help="Write the report here.")
        add_engine_arguments(parser, model_positional=False)

    def run(self, args: argparse.Namespace) -> int:
        """Status 1 if a stream was not as it should be."""
        config, facts = engine_config(
            args,
            max_num_seqs=args.streams,
            dtype="float32",
            engine_recovery="resume",
            engine_recovery_option=[f"max_restarts={AS_OFTEN_AS_IT_TAKES}"],
        )
        check_length(config, args.prompt_len, args.output_len)
        machine = describe_machine()
        from tenonry.client.async_llm import AsyncLLM

        engine = AsyncLLM.from_config(config)
        try:
            with asyncio.Runner(loop_factory=event_loop("auto")[1]) as runner:
                soak = Soak(engine, args, facts.vocab_size)
                before, after = runner.run(soak.run())
        finally:
            engine.shutdown()
        report = SoakReport(
            seconds=soak.seconds,
            faults=soak.faults,
            ledger=soak.ledger,
            silence_p50_s=percentile(soak.silences, 0.5),
            silence_max_s=max(soak.silences, default=0.0),
            before=before,
            after=after,
            settings=settings_of(config),
            machine=machine,
        )
        print(describe(report))
        write_report(args.json, report)
        return 0 if report.ledger.is_clean else 1


class Soak:
    """Streams, faults, and the ledger of both."""

    def __init__(self, engine: AsyncLLM, args: argparse.Namespace, vocab_size: int) -> None:
        self._engine = engine
        self._args = args
        self._random = random.Random(args.draw)  # noqa: S311 - no secret
        self._prompts = [
            [self._random.randrange(3, vocab_size) for _ in range(args.prompt_len)]
            for _ in range(args.streams)
        ]
        self._expected: list[list[int]] = []
        self._longest = 0.0
        self._ends_at = 0.0
        self.seconds = 0.0
        self.faults = dict.fromkeys(args.faults, 0)
        self.silences: list[float] = []
        self.ledger = Ledger(errors=[])

    async def run(self) -> tuple[Residue, Residue]:
        """Run without faults first; then until the time is over, and all streams have ended."""
        self._expected = await asyncio.gather(
            *(self._complete(place, f"first {place}") for place in range(len(self._prompts)))
        )
        before = residue()
        started = time.monotonic()
        self._ends_at = started + self._args.seconds
        killer = asyncio.ensure_future(self._strike())
        await asyncio.gather(*(self._keep_on(place) for place in range(len(self._prompts))))
        await killer
        self._note_silence()
        while not self._engine.is_serving:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(POLL_S)
        self.seconds = time.monotonic() - started
        return before, residue()

    # ------------------------------------------------------------------ streams
    def _params(self, place: int) -> SamplingParams:
        """Greedy and sampled alternately."""
        return SamplingParams(
            temperature=0.0 if place % 2 else 0.8,
            seed=place,
            max_tokens=self._args.output_len,
            ignore_eos=True,
            output_kind=OutputKind.DELTA,
            detokenize=False,
        )

    async def _complete(self, place: int, request_id: str) -> list[int]:
        prompt = {"prompt_token_ids": self._prompts[place]}
        got: list[int] = []
        last: float | None = None
        outputs: AsyncIterator[Any] = self._engine.generate(prompt, self._params(place), request_id)
        async for output in outputs:
            got += output.outputs[0].token_ids
            now = time.monotonic()
            if last is not None:
                self._longest = max(self._longest, now - last)
            last = now
        return got

    async def _keep_on(self, place: int) -> None:
        """One stream after another."""
        number = 0
        while time.monotonic() < self._ends_at:
            number += 1
            self.ledger.streams += 1
            try:
                got = await self._complete(place, f"{place} {number}")
            except TenonryError as error:
                self.ledger.failed += 1
                self.ledger.errors.append(str(error))
                continue
            self._judge(got, self._expected[place])

    def _judge(self, got: Sequence[int], expected: Sequence[int]) -> None:
        self.ledger.tokens += len(got)
        if len(got) != len(expected):
            self.ledger.short += len(got) < len(expected)
            self.ledger.long += len(got) > len(expected)
        elif got != expected:
            self.ledger.diverged += 1

    # ------------------------------------------------------------------ faults
    async def _strike(self) -> None:
        every = float(self._args.every)
        while time.monotonic() + every < self._ends_at:
            await asyncio.sleep(every)
            self._note_silence()
            pids = list(self._engine.engine_pids.values())
            if not pids:
                continue
            fault = self._random.choice(self._args.faults)
            pid = self._random.choice(pids)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, FAULTS[fault])
                self.faults[fault] += 1
                if fault == "stop":
                    await asyncio.sleep(STOPPED_S)
                    os.kill(pid, signal.SIGCONT)

    def _note_silence(self) -> None:
        """The longest one since the last fault."""
        if any(self.faults.values()):
            self.silences.append(self._longest)
        self._longest = 0.0


def residue() -> Residue:
    """Current resources of this process."""
    process = psutil.Process()
    names = list(SHARED_MEMORY.iterdir()) if SHARED_MEMORY.is_dir() else []
    return Residue(
        processes=len(below()),
        files=process.num_fds(),
        shared_memory=len(names),
        rss_mib=process.memory_info().rss / 2**20,
    )


def describe(report: SoakReport) -> str:
    """The report for a person."""
    ledger = report.ledger
    faults = ", ".join(f"{number} × {name}" for name, number in report.faults.items())
    rows = [
        (name, str(round(getattr(report.before, name))), str(round(getattr(report.after, name))))
        for name in Residue.__struct_fields__
    ]
    lines = [
        f"{report.seconds:.0f} s, {faults}: {ledger.streams} streams, {ledger.tokens} tokens",
        f"diverged {ledger.diverged}, short {ledger.short}, long {ledger.long}, failed {ledger.failed}",
        f"silence after a fault: {report.silence_p50_s:.2f} s (median), {report.silence_max_s:.2f} s (longest)",
        *sorted(set(ledger.errors))[:5],
        table(("held", "before", "after"), rows),
        str(report.machine.pace),
    ]
    return "\n".join(lines)
