"""`tenonry bench gguf FILE`: a GGUF file here and on llama.cpp, as one table: start, memory, speed and perplexity.

All engines compute the same file with the same number of threads, in interleaved runs.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import psutil

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError, TenonryError
from tenonry.interfaces.command import Command
from tenonry_bench.figures import spread
from tenonry_bench.layouts import alternated
from tenonry_bench.machine import Machine, describe_machine, physical_cores
from tenonry_bench.models.engines import OURS, Engine, environment, find_peers, ours, read_pythons
from tenonry_bench.models.measure import ModelBench
from tenonry_bench.models.results import Result, ratios
from tenonry_bench.models.session import Scored, Session, resident_mib
from tenonry_bench.models.table import describe
from tenonry_bench.pace import Pace, measure_pace
from tenonry_bench.settings import MAX_MODEL_LEN, count, write_report
from tenonry_bench.workload import Workload, WorkloadFile
from tenonry_hf_hub import GGUF_WEIGHTS, locate_model

PEER = "llama.cpp"
WORKLOADS = WorkloadFile(
    seed=7,
    token_range=(1000, 8000),
    workloads={
        "start": Workload(kind="startup", requests=1, prompt_len=8, out_len=1),
        "one stream": Workload(requests=1, prompt_len=8, out_len=96),
        "32 streams": Workload(requests=32, prompt_len=8, out_len=48),
        "prompt": Workload(requests=1, prompt_len=600, out_len=1),
    },
)
# Prints a line when it has imported, and waits for the end of its input.
IMPORTED = "{imports}\nprint(flush=True)\nimport sys\nsys.stdin.read()"
MIB = 1 << 20


class GgufReport(msgspec.Struct, kw_only=True):
    """`engines`: name to version. `notes`: skipped peers and reasons."""

    bench: str = "gguf"
    file: str
    file_mib: float
    runs: int
    engines: dict[str, str]
    results: list[Result]
    notes: list[str]
    engine_args: list[str]
    machine: Machine
    pace_after: Pace


class GgufBench(Command):
    """Starts one program per engine and runs them interleaved."""

    summary = "GGUF file compared with llama.cpp: start, memory, tokens per second, perplexity."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("file", metavar="FILE", help="GGUF file.")
        add("--runs", type=count, default=3, metavar="N", help="Repetitions [default: 3].")
        add(
            "--threads",
            type=count,
            metavar="N",
            help="Threads of every engine [default: physical cores].",
        )
        add("--text", metavar="FILE", help="Text for the perplexity [default: a page of English].")
        add(
            "--peer-python",
            action="append",
            default=[],
            metavar="NAME=PATH",
            help=f"Python interpreter with {PEER} installed: '{PEER}=PATH'.",
        )
        add(
            "--engine-args",
            default="--dtype bfloat16",
            metavar="TEXT",
            help="Engine flags as one argument [default: '--dtype bfloat16'].",
        )
        add("--json", metavar="FILE", help="Write the report here.")

    def run(self, args: argparse.Namespace) -> int:
        file = Path(args.file)
        if not file.is_file():
            raise ConfigError(f"there is no file '{file}'; give the path of a .gguf file")
        text = read_text(args.text)
        peers, notes = find_peers([PEER], read_pythons(args.peer_python))
        folder = locate_model(EngineConfig(model=str(file.resolve()))).path
        if not (folder / GGUF_WEIGHTS).is_file():
            raise ConfigError(f"{file} is no GGUF file; bench models measures folders")
        with tempfile.TemporaryDirectory() as scratch:
            options = {
                "model": str(folder.resolve()),
                "threads": args.threads or physical_cores(),
                "max_model_len": MAX_MODEL_LEN,
                "max_num_seqs": 32,
                "engine_args": shlex.split(args.engine_args),
                "scratch": scratch,
            }
            machine = describe_machine()
            bench = Measurement(file, [ours(), *peers], options, args.runs)
            results = bench.measure(text)
        notes += [
            f"{name} failed: {words.splitlines()[-1]}" for name, words in bench.failures.items()
        ]
        report = GgufReport(
            file=file.name,
            file_mib=round(bench.file_mib, 1),
            runs=args.runs,
            engines=bench.versions,
            results=results,
            notes=notes,
            engine_args=options["engine_args"],
            machine=machine,
            pace_after=measure_pace(),
        )
        print(describe(results, report.engines, notes, machine, report.pace_after))
        write_report(args.json, report)
        return 0


class Measurement:
    """All figures of one file. `failures`: engine to its last output; its later figures are missing."""

    def __init__(
        self, file: Path, engines: list[Engine], options: dict[str, Any], runs: int
    ) -> None:
        self._name = file.stem
        self._engines = engines
        self._options = options
        self._runs = runs
        self._bench = ModelBench(self._name, engines, WORKLOADS, options)
        self.file_mib = file.stat().st_size / MIB
        self.failures: dict[str, str] = {}
        self.versions: dict[str, str] = {}

    def measure(self, text: str) -> list[Result]:
        """Speeds, then memory and perplexity. Raises TenonryError if tenonry itself fails."""
        results = self._bench.measure(list(WORKLOADS.workloads), self._runs, show_progress)
        self.failures |= self._bench.failures
        self.versions |= self._bench.versions
        memory: dict[str, list[float]] = {}
        perplexity: dict[str, list[float]] = {}
        tokens: str | list[int] = text
        for run in range(self._runs):
            for engine in alternated(self._engines, run):
                with self._dropping(engine) as takes_part:
                    if not takes_part:
                        continue
                    show_progress(f"{self._name}: memory and perplexity of {engine.name}")
                    over, scored = self._loaded(engine, tokens)
                    tokens = scored.tokens
                    memory.setdefault(engine.name, []).append(over)
                    perplexity.setdefault(engine.name, []).append(scored.perplexity)
        shares = {name: [each / self.file_mib for each in own] for name, own in memory.items()}
        return [
            *results,
            self._result("memory", "MiB over imports", memory),
            self._result("memory", "the same over the file's size", shares),
            self._result("page of text", "perplexity", perplexity),
        ]

    @contextlib.contextmanager
    def _dropping(self, engine: Engine) -> Iterator[bool]:
        """Record the failure of a peer. Yields False for one that failed before."""
        try:
            yield engine.name not in self.failures
        except (TenonryError, OSError) as error:
            if engine.name == OURS:
                raise
            self.failures[engine.name] = str(error)

    def _loaded(self, engine: Engine, text: str | list[int]) -> tuple[float, Scored]:
        """Resident MiB after the first answer, over those of the imports alone; and the score of a text."""
        imported = resident_after_imports(engine, self._options["threads"])
        prompts = WORKLOADS.prompts("start", 0)
        with Session(engine, self._options) as session:
            session.ready()
            session.run(prompts, 1)
            over = session.resident_mib() - imported
            return over, session.score(text)

    def _result(self, workload: str, figure: str, numbers: dict[str, list[float]]) -> Result:
        whole = {name: each for name, each in numbers.items() if len(each) == self._runs}
        return Result(
            model=self._name,
            workload=workload,
            figure=figure,
            more_is_better=False,
            engines={name: spread(each) for name, each in whole.items()},
            ratios=ratios(whole, more_is_better=False),
        )


def resident_after_imports(engine: Engine, threads: int) -> float:
    """Resident MiB of a process that has imported what the engine's program imports for any model."""
    with subprocess.Popen(
        [engine.command[0], "-c", IMPORTED.format(imports=engine.imports)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(threads),
    ) as process:
        output = process.stdout
        if output is None or not output.readline():
            raise TenonryError(f"the imports of {engine.name} failed")
        resident = resident_mib(psutil.Process(process.pid))
        process.communicate()
    return resident


def read_text(path: str | None) -> str:
    """A text file, or the page of this package. Raises ConfigError."""
    if path is None:
        return (resources.files("tenonry_bench") / "page.txt").read_text("utf-8")
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--text {path} cannot be read: {error}") from None


def show_progress(words: str) -> None:
    """Progress, for a person."""
    print(words, file=sys.stderr, flush=True)
