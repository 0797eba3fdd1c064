"""An engine's running program: requests runs and reads their times. The measuring process."""

from __future__ import annotations

import contextlib
import math
import re
import subprocess
import tempfile
import time
from typing import IO, Any, Self

import msgspec
import psutil

from tenonry.errors import TenonryError
from tenonry_bench.models.engines import Engine

END_S = 30.0
LAST_LINES = 15
LIBRARY = re.compile(r"\.so(\.\d+)*$")


class Times(msgspec.Struct, frozen=True):
    """One run: seconds on the clock, and to the first and per later token of each request."""

    wall: float
    ttft: list[float]
    tpot: list[float]


class Scored(msgspec.Struct, frozen=True):
    """A text's token ids, and the negative log-likelihood of each but the first, in nats."""

    tokens: list[int]
    nll: list[float]

    @property
    def perplexity(self) -> float:
        """Exponential of the mean."""
        return math.exp(math.fsum(self.nll) / len(self.nll))


class Loaded(msgspec.Struct, frozen=True):
    """Message of a program when its model is loaded."""

    version: str


class Session:
    """One program with one model. The program starts on construction; `ready` waits until it has loaded."""

    def __init__(self, engine: Engine, options: dict[str, Any]) -> None:
        self._engine = engine
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed in `close`
        self.started = time.perf_counter()
        self._process = engine.start(options, self._log)
        self.version = ""

    def ready(self) -> None:
        """Raises TenonryError with the program's last words if it ends instead."""
        self.version = msgspec.json.decode(self._read(), type=Loaded).version

    def run(self, prompts: list[list[int]], out_len: int) -> Times:
        """One run. Raises TenonryError."""
        self.ask(prompts, out_len)
        return self.answer()

    def ask(self, prompts: list[list[int]], out_len: int) -> None:
        """Send a run, perhaps before the model is loaded."""
        self._send({"prompts": prompts, "out_len": out_len})

    def answer(self) -> Times:
        """The times of the requested run."""
        return msgspec.json.decode(self._read(), type=Times)

    def score(self, text: str | list[int]) -> Scored:
        """Probabilities of a text, or of its token ids. Raises TenonryError."""
        self._send({"score": text})
        return msgspec.json.decode(self._read(), type=Scored)

    def resident_mib(self) -> float:
        """Resident memory of the program and all processes below it, without pages of libraries."""
        root = psutil.Process(self._process.pid)
        return sum(map(resident_mib, (root, *root.children(recursive=True))))

    def memory_gib(self) -> float:
        """Memory of the program and all processes below it, shared pages counted once."""
        root = psutil.Process(self._process.pid)
        total = 0
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
        return total / 2**30

    def _send(self, message: dict[str, Any]) -> None:
        stdin = pipe(self._process.stdin)
        with contextlib.suppress(BrokenPipeError):  # the answer contains the reason
            stdin.write(msgspec.json.encode(message).decode() + "\n")
            stdin.flush()

    def _read(self) -> str:
        line = pipe(self._process.stdout).readline()
        if not line:
            raise TenonryError(self._last_words())
        return line

    def _last_words(self) -> str:
        status = self._process.wait(END_S)
        self._log.seek(0)
        tail = "\n".join(self._log.read().splitlines()[-LAST_LINES:])
        return f"the program of {self._engine.name} ended with status {status}:\n{tail}"

    def finish(self) -> None:
        """Wait until the program has ended by itself. Raises TenonryError if its status is not 0."""
        if self._process.wait():
            raise TenonryError(self._last_words())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close its input to end the program; kill it and its children if it does not exit."""
        below = []
        with contextlib.suppress(psutil.NoSuchProcess):
            below = psutil.Process(self._process.pid).children(recursive=True)
        with contextlib.suppress(BrokenPipeError):
            pipe(self._process.stdin).close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        self._process.kill()
        for process in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        pipe(self._process.stdout).close()
        self._log.close()


def resident_mib(process: psutil.Process) -> float:
    """Resident MiB of a process without the pages of shared libraries.

    Their number follows from the code that has run. Processes share them, and the system evicts them first.
    """
    mapped = process.memory_maps()
    return sum(each.rss for each in mapped if not LIBRARY.search(each.path)) / 2**20


def prepare(engine: Engine, options: dict[str, Any]) -> None:
    """Run a program's preparation of a model, such as a conversion of its file. Raises TenonryError."""
    with Session(engine, {**options, "prepare": True}) as session:
        session.finish()


def pipe(file: IO[str] | None) -> IO[str]:
    """Narrow the type of a pipe that `Engine.start` opened."""
    assert file is not None  # noqa: S101 - PIPE
    return file
