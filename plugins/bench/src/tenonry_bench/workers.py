"""`tenonry bench workers`: decoding speed of workers on the same rows, in one process, interleaved.

Decoding time is a long answer less a short one to the same prompts, so that prompts are not counted.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tenonry.errors import ConfigError
from tenonry.interfaces.command import Command
from tenonry.sampling_params import SamplingParams
from tenonry_bench.figures import Spread, spread, table
from tenonry_bench.machine import Machine, describe_machine
from tenonry_bench.settings import (
    check_length,
    count,
    engine_config,
    refuse,
    settings_of,
    write_report,
)
from tenonry_bench.throughput import check_output, set_threads
from tenonry_bench.tiny_models import SHAPES, write_shape
from tenonry_commands.arguments import add_engine_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenonry.client.llm import LLM

SHORT = 2  # tokens of the answers that are taken off
CLOCK_S = 1e-9  # resolution of a clock


class WorkerFigures(msgspec.Struct, frozen=True):
    """Tokens per second while decoding, on the clock and per second of this process's CPU time, and with prompts."""

    worker: str
    decode_tok_s: Spread
    decode_tok_cpu_s: Spread
    whole_tok_s: Spread


class WorkersReport(msgspec.Struct, kw_only=True):
    """`ratio_cpu` and `ratio_wall`, run by run: decoding by the first worker over decoding by each other one. `same`:
    true if all workers generated the same tokens.
    """

    bench: str = "workers"
    model: str
    requests: int
    prompt_len: str
    out_len: int
    workers: list[WorkerFigures]
    ratio_cpu: dict[str, Spread]
    ratio_wall: dict[str, Spread]
    same: bool
    settings: dict[str, Any]
    machine: Machine


class Seconds(NamedTuple):
    """Seconds on the clock, and of this process on all cores."""

    wall: float
    cpu: float


class Turn(NamedTuple):
    """One worker, once: a short answer to each prompt, and a long one."""

    short: Seconds
    long: Seconds
    tokens: list[list[int]]

    def decoding(self, field: str) -> float:
        """Seconds for the tokens that the long answers have more."""
        more: float = getattr(self.long, field) - getattr(self.short, field)
        return max(more, CLOCK_S)


class WorkersBench(Command):
    """Drives one `LLM` per worker."""

    summary = (
        "Several workers on one model, interleaved: decoded tokens per second and their ratio."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--workers",
            default="torch,transformers",
            metavar="W1,W2",
            help="Workers; the first is compared with the others [default: torch,transformers].",
        )
        parser.add_argument(
            "--shape", choices=sorted(SHAPES), help="Shape with random weights, instead of --model."
        )
        parser.add_argument(
            "--requests", type=count, default=64, metavar="N", help="Concurrent rows [default: 64]."
        )
        parser.add_argument(
            "--prompt-len",
            default="16",
            metavar="N or N-M",
            help="Tokens per prompt; N-M cycles through all lengths [default: 16].",
        )
        parser.add_argument(
            "--out-len",
            type=count,
            default=66,
            metavar="N",
            help="Tokens per answer [default: 66].",
        )
        parser.add_argument(
            "--runs", type=count, default=5, metavar="N", help="Repetitions [default: 5]."
        )
        parser.add_argument("--threads", type=count, metavar="N", help="Threads of torch.")
        parser.add_argument("--json", metavar="FILE", help="Write the report here.")
        add_engine_arguments(parser, model_positional=False)

    def run(self, args: argparse.Namespace) -> int:
        names = args.workers.split(",")
        refuse(args, {"worker": "--workers", "max_num_seqs": "--requests"})
        if args.out_len <= SHORT:
            raise ConfigError(
                f"--out-len {args.out_len} leaves nothing to decode; give more than {SHORT}"
            )
        lengths = prompt_lengths(args.prompt_len, args.requests)
        set_threads(args.threads)
        with ExitStack() as stack:
            if args.shape is not None:
                refuse(args, {"model": "either --shape or --model", "load_format": "--model"})
                args.model = stack.enter_context(tempfile.TemporaryDirectory())
                args.load_format = "dummy"
                write_shape(args.shape, Path(args.model))
            report = self._measured(args, names, lengths, stack)
        print(describe(report))
        write_report(args.json, report)
        return 0

    def _measured(
        self, args: argparse.Namespace, names: list[str], lengths: list[int], stack: ExitStack
    ) -> WorkersReport:
        from tenonry.client.llm import LLM

        machine = describe_machine()
        llms: dict[str, LLM] = {}
        for name in names:
            args.worker = name
            config, facts = engine_config(
                args, max_num_seqs=args.requests, io_processor="none", enable_prefix_caching=False
            )
            check_length(config, max(lengths), args.out_len)
            llms[name] = stack.enter_context(LLM(config=config))
        generator = random.Random(0)  # noqa: S311 - the same prompts each time
        prompts = [
            [generator.randrange(3, facts.vocab_size) for _ in range(length)] for length in lengths
        ]
        for llm in llms.values():
            turn(llm, prompts, SHORT + 1)
        runs = [
            {name: turn(llm, prompts, args.out_len) for name, llm in llms.items()}
            for _ in range(args.runs)
        ]
        first, *others = names
        return WorkersReport(
            model=args.shape or config.model,
            requests=args.requests,
            prompt_len=args.prompt_len,
            out_len=args.out_len,
            workers=[figures(name, [run[name] for run in runs], args.out_len) for name in names],
            ratio_cpu={name: ratio(runs, first, name, "cpu") for name in others},
            ratio_wall={name: ratio(runs, first, name, "wall") for name in others},
            same=all(made.tokens == run[first].tokens for run in runs for made in run.values()),
            settings=settings_of(config),
            machine=machine,
        )


def prompt_lengths(text: str, requests: int) -> list[int]:
    """As many as there are requests: of "16" all 16, of "8-40" 8, 9, … 40, 8, 9, …. Raises ConfigError."""
    low, _, high = text.partition("-")
    try:
        numbers = range(int(low), int(high or low) + 1)
    except ValueError:
        numbers = range(0)
    if not numbers or numbers[0] < 1:
        raise ConfigError(f"--prompt-len {text} is neither a number above 0 nor two, as in 8-40")
    return [numbers[place % len(numbers)] for place in range(requests)]


def turn(llm: LLM, prompts: Sequence[list[int]], out_len: int) -> Turn:
    """A short answer to each prompt, and a long one. Raises TenonryError if a request failed."""
    short, _ = timed(llm, prompts, SHORT)
    long, tokens = timed(llm, prompts, out_len)
    return Turn(short, long, tokens)


def timed(llm: LLM, prompts: Sequence[list[int]], out_len: int) -> tuple[Seconds, list[list[int]]]:
    """Time of answers of `out_len` tokens, and their tokens."""
    params = SamplingParams(temperature=0.0, max_tokens=out_len, ignore_eos=True, detokenize=False)
    wall = time.perf_counter()
    cpu = time.process_time()
    outputs = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False
    )
    took = Seconds(time.perf_counter() - wall, time.process_time() - cpu)
    for output in outputs:
        check_output(output, out_len)
    return took, [list(output.outputs[0].token_ids) for output in outputs]


def figures(name: str, turns: Sequence[Turn], out_len: int) -> WorkerFigures:
    """Sum the turns of a worker up."""
    requests = len(turns[0].tokens)
    decoded = requests * (out_len - SHORT)
    return WorkerFigures(
        worker=name,
        decode_tok_s=spread([decoded / each.decoding("wall") for each in turns]),
        decode_tok_cpu_s=spread([decoded / each.decoding("cpu") for each in turns]),
        whole_tok_s=spread([requests * out_len / each.long.wall for each in turns]),
    )


def ratio(runs: Sequence[dict[str, Turn]], first: str, other: str, field: str) -> Spread:
    """Speed-up of `first` over `other` in decoding, run by run."""
    return spread([run[other].decoding(field) / run[first].decoding(field) for run in runs])


def describe(report: WorkersReport) -> str:
    """The report for a person."""
    header = ("worker", "decode tok/s", "decode tok/CPU-s", "whole tok/s")
    rows = [
        (
            one.worker,
            one.decode_tok_s.text(0),
            one.decode_tok_cpu_s.text(0),
            one.whole_tok_s.text(0),
        )
        for one in report.workers
    ]
    first = report.workers[0].worker
    lines = [
        f"{report.model}: {report.requests} rows, prompts of {report.prompt_len}, answers of {report.out_len} tokens",
        "median (min–max)",
        table(header, rows),
    ]
    for other, figure in report.ratio_cpu.items():
        wall = report.ratio_wall[other].text(2)
        lines.append(
            f"{first} over {other}, decoding: {figure.text(2)} by CPU time, {wall} on the clock"
        )
    lines.append("tokens identical" if report.same else "TOKENS DIFFER between workers")
    return "\n".join(lines)
