"""Traces: requests with their arrivals and lengths, as the stat logger `jsonl` writes them. Client process.

A line is a JSON object with `arrival_time` (seconds), `prompt_tokens` and `output_tokens`; other fields are ignored.
Prompts are not part of a trace, so those that are sent are random ids: none shares a prefix with another.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from tenonry.errors import ConfigError
from tenonry_bench.workload import narrow

Tokens = Annotated[int, msgspec.Meta(ge=0)]


class TracedRequest(msgspec.Struct, frozen=True):
    """One line of a trace."""

    arrival_time: float
    prompt_tokens: Tokens
    output_tokens: Tokens


def read_trace(paths: Sequence[str]) -> list[TracedRequest]:
    """Requests of all files by arrival, without those that got no token. Raises ConfigError that names the line."""
    found = []
    for path in paths:
        try:
            lines = Path(path).read_bytes().splitlines()
        except OSError as error:
            raise ConfigError(f"--trace {path} cannot be read: {error.strerror}") from None
        for number, line in enumerate(lines, start=1):
            try:
                found.append(msgspec.json.decode(line, type=TracedRequest))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ConfigError(
                    f"--trace {path}, line {number} is no request of a trace: {error}"
                ) from None
    found = [each for each in found if each.prompt_tokens and each.output_tokens]
    if not found:
        raise ConfigError(f"--trace {', '.join(paths)}: no request has prompt and output tokens")
    return sorted(found, key=lambda each: each.arrival_time)


def starts(trace: list[TracedRequest], speed: float) -> list[float]:
    """Seconds from the first arrival to each, `speed` times as fast."""
    return [(each.arrival_time - trace[0].arrival_time) / speed for each in trace]


def prompts(
    trace: list[TracedRequest], token_range: tuple[int, int], seed: int, vocab_size: int
) -> list[list[int]]:
    """Random token ids of the lengths of the trace."""
    low, high = narrow(token_range, vocab_size)
    draw = random.Random(seed).randrange  # noqa: S311  # no secrets
    return [[draw(low, high) for _ in range(each.prompt_tokens)] for each in trace]
