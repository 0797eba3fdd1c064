"""`tenonry bench embeddings`: vectors of texts by an engine here, and by sentence-transformers on the same folder.

One process, interleaved, from texts to vectors on both sides, so that tokenizing counts.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import TYPE_CHECKING, Any

import msgspec

from tenonry.errors import ConfigError
from tenonry.interfaces.command import Command
from tenonry_bench.figures import Spread, spread
from tenonry_bench.machine import Machine, describe_machine
from tenonry_bench.settings import add_count_flags, engine_config, refuse, settings_of, write_report
from tenonry_bench.throughput import set_threads
from tenonry_commands.arguments import add_engine_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from tenonry.client.llm import LLM

    Vectors = Callable[[Sequence[str]], NDArray[np.float32]]

RUNS = 5
TEXTS = 128
BATCH = 32
SHORTEST = 6  # words of a text
LONGEST = 60
WORDS = "the of and to in is that for it as was with on house cat water time people year city music letter winter"
ROUNDING = 0.05  # numbers of vectors of length 1 may differ by it in bfloat16


class EmbeddingsReport(msgspec.Struct, kw_only=True):
    """Spreads over runs: texts per second, and per second of this process's CPU time; `ratio_cpu` and `ratio_wall`, run
    by run: ours over theirs. `difference`: the greatest of any number of a vector.
    """

    bench: str = "embeddings"
    model: str
    texts: int
    batch: int
    ours_texts_s: Spread
    theirs_texts_s: Spread
    ratio_cpu: Spread
    ratio_wall: Spread
    difference: float
    settings: dict[str, Any]
    machine: Machine


class EmbeddingsBench(Command):
    """Drives one `LLM` and one SentenceTransformer."""

    summary = "Embeddings compared with sentence-transformers on the same model."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_count_flags(
            parser,
            ("--texts", TEXTS, "Texts of a run"),
            ("--batch", BATCH, "Texts per batch, on both sides"),
            ("--runs", RUNS, "Turns"),
        )
        parser.add_argument("--threads", type=int, metavar="N", help="Threads of torch.")
        parser.add_argument("--json", metavar="FILE", help="Write the report here.")
        add_engine_arguments(parser, model_positional=False)

    def run(self, args: argparse.Namespace) -> int:
        refuse(args, {"max_num_seqs": "--batch"})
        set_threads(args.threads)
        config, facts = engine_config(args, max_num_seqs=args.batch)
        machine = describe_machine()
        texts = random_texts(args.texts)
        theirs = sentence_transformers(facts.path, config.dtype, args.batch)
        from tenonry.client.llm import LLM

        with LLM(config=config) as llm:
            sides = {"ours": vectors_of(llm), "theirs": theirs}
            difference = compared(sides, texts)
            turns = [
                {name: timed(vectors, texts) for name, vectors in sides.items()}
                for _ in range(args.runs)
            ]
        report = EmbeddingsReport(
            model=config.model,
            texts=args.texts,
            batch=args.batch,
            ours_texts_s=spread([args.texts / turn["ours"][0] for turn in turns]),
            theirs_texts_s=spread([args.texts / turn["theirs"][0] for turn in turns]),
            ratio_wall=spread([turn["theirs"][0] / turn["ours"][0] for turn in turns]),
            ratio_cpu=spread([turn["theirs"][1] / turn["ours"][1] for turn in turns]),
            difference=difference,
            settings=settings_of(config),
            machine=machine,
        )
        print(describe(report))
        write_report(args.json, report)
        return 0


def random_texts(count: int) -> list[str]:
    """Texts of many lengths, the same each time."""
    generator = random.Random(0)  # noqa: S311 - the same texts each time
    lengths = [generator.randint(SHORTEST, LONGEST) for _ in range(count)]
    return [" ".join(generator.choices(WORDS.split(), k=length)) for length in lengths]


def sentence_transformers(model: str, dtype: str, batch: int) -> Vectors:
    """The library's `encode`. Raises ConfigError if it is not installed."""
    try:
        from sentence_transformers import SentenceTransformer
    except ModuleNotFoundError as error:
        raise ConfigError(
            "the peer of this benchmark is not there: pip install tenonry-bench[embeddings]"
        ) from error
    peer = SentenceTransformer(
        model, device="cpu", local_files_only=True, model_kwargs={"dtype": dtype}
    )
    return lambda texts: peer.encode(
        list(texts), batch_size=batch, show_progress_bar=False, normalize_embeddings=True
    )


def vectors_of(llm: LLM) -> Vectors:
    """`LLM.embed`, as one array."""
    import numpy as np

    return lambda texts: np.stack(
        [each.data for each in llm.embed(list(texts), normalize=True, use_tqdm=False)]
    )


def compared(sides: dict[str, Vectors], texts: Sequence[str]) -> float:
    """The greatest difference; also warms both up. Raises ConfigError if the vectors differ."""
    ours, theirs = (vectors(texts) for vectors in sides.values())
    if ours.shape != theirs.shape or not abs(ours - theirs).max() <= ROUNDING:
        raise ConfigError(
            f"sentence-transformers gives other vectors, {list(theirs.shape)} beside our {list(ours.shape)}; its "
            "prompts or its max_seq_length change the texts of this model"
        )
    return float(abs(ours - theirs).max())


def timed(vectors: Vectors, texts: Sequence[str]) -> tuple[float, float]:
    """Seconds on the clock, and of this process on all cores."""
    wall = time.perf_counter()
    cpu = time.process_time()
    vectors(texts)
    return time.perf_counter() - wall, time.process_time() - cpu


def describe(report: EmbeddingsReport) -> str:
    """The report for a person."""
    lines = [
        f"{report.model}: {report.texts} texts of {SHORTEST} to {LONGEST} words, {report.batch} per batch",
        "  median (min–max)",
        f"  tenonry                 {report.ours_texts_s.text(0)} texts/s",
        f"  sentence-transformers   {report.theirs_texts_s.text(0)} texts/s",
        f"  ratio                   {report.ratio_cpu.text(2)} by CPU time, {report.ratio_wall.text(2)} on the clock",
        f"  greatest difference     {report.difference:.1e}",
    ]
    return "\n".join([*lines, str(report.machine.pace)])
