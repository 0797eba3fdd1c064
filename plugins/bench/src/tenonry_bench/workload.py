"""Workload files: the requests to an engine, and their prompts. Any process.

The format and the prompts are those used to measure peers: greedy, end of sequence ignored, exactly `out_len` tokens,
prompts of random ids that depend on nothing but the file, the workload's name and the run.
"""

from __future__ import annotations

import functools
import random
import zlib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import msgspec

from tenonry.errors import ConfigError

Count = Annotated[int, msgspec.Meta(ge=1)]
WARM_UP_RUN = 900  # a unique run number: no later run has its prompts in the prefix cache


class Workload(msgspec.Struct, frozen=True):
    """`requests` prompts of `prompt_len` tokens, the first `shared_prefix_len` of them the same in all; `out_len` new
    tokens each. `kind`: offline (all together), served (over HTTP, `concurrency` at a time) or startup.
    """

    requests: Count
    prompt_len: Count
    out_len: Count
    kind: str = "offline"
    shared_prefix_len: Annotated[int, msgspec.Meta(ge=0)] = 0
    concurrency: Count | None = None


class WorkloadFile(msgspec.Struct, frozen=True):
    """A file of workloads. `token_range` is [low, high): where prompt ids are drawn from."""

    seed: int
    token_range: tuple[int, int]
    workloads: dict[str, Workload]
    note: str = ""

    def get(self, name: str) -> Workload:
        """Raises ConfigError for an unknown name."""
        if name not in self.workloads:
            raise ConfigError(
                f"no workload is called '{name}'; the file holds {', '.join(self.workloads) or 'none'}"
            )
        return self.workloads[name]

    def named(self, text: str | None, kind: str) -> list[str]:
        """Names given as `W1,W2`, or all of one kind."""
        if text is None:
            return [name for name, workload in self.workloads.items() if workload.kind == kind]
        names = [name.strip() for name in text.split(",") if name.strip()]
        for name in names:
            self.get(name)
        return names

    def prompts(
        self, name: str, run: int, requests: int | None = None, vocab_size: int = 0
    ) -> list[list[int]]:
        """Token ids of one run. With a `vocab_size` below the token range, ids are drawn from the vocabulary."""
        workload = self.get(name)
        low, high = narrow(self.token_range, vocab_size)
        draw = random.Random(self.seed * 1000 + 97 * run + number(name)).randrange  # noqa: S311  # no secrets
        shared = [draw(low, high) for _ in range(workload.shared_prefix_len)]
        own = workload.prompt_len - len(shared)
        return [
            shared + [draw(low, high) for _ in range(own)]
            for _ in range(requests or workload.requests)
        ]


def number(name: str) -> int:
    """Seed that distinguishes the prompts of workloads: W7 is 7; any other name is hashed."""
    digits = name[1:]
    return int(digits) if digits.isdecimal() else zlib.crc32(name.encode())


def narrow(token_range: tuple[int, int], vocab_size: int) -> tuple[int, int]:
    """The part of `token_range` that a vocabulary has; the upper half of a vocabulary that ends below the range."""
    low, high = token_range
    if not vocab_size or high <= vocab_size:
        return low, high
    return (low, vocab_size) if low < vocab_size - 1 else (vocab_size // 2, vocab_size)


def random_prompts(count: int, length: int, seed: int, vocab_size: int) -> list[list[int]]:
    """Prompts for benchmarks without a workload file, from the token range of the default file."""
    low, high = narrow(default_workloads().token_range, vocab_size)
    draw = random.Random(seed).randrange  # noqa: S311  # no secrets
    return [[draw(low, high) for _ in range(length)] for _ in range(count)]


def load_workloads(path: str | None) -> WorkloadFile:
    """Read a workload file, or the one of this package. Raises ConfigError that names the defect."""
    try:
        text: Any = Path(path).read_bytes() if path else default_file().read_bytes()
    except OSError as error:
        raise ConfigError(f"workload file {path} cannot be read: {error.strerror}") from None
    try:
        loaded = msgspec.json.decode(text, type=WorkloadFile)
    except msgspec.DecodeError as error:
        raise ConfigError(f"workload file {path} is not valid: {error}") from None
    _check(loaded, path or "of this package")
    return loaded


@functools.cache
def default_workloads() -> WorkloadFile:
    """The workload file of this package, read once."""
    return load_workloads(None)


def default_file() -> Any:
    """The workload file of this package."""
    return resources.files("tenonry_bench") / "workloads.json"


def _check(loaded: WorkloadFile, path: str) -> None:
    low, high = loaded.token_range
    if not 0 <= low < high:
        raise ConfigError(
            f"workload file {path}: token_range [{low}, {high}] is empty; give [low, high) with low < high"
        )
    for name, workload in loaded.workloads.items():
        if workload.shared_prefix_len >= workload.prompt_len:
            raise ConfigError(
                f"workload file {path}: {name} shares {workload.shared_prefix_len} of {workload.prompt_len} prompt "
                "tokens; at least one must be the request's own"
            )
