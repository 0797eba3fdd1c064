"""Batches of a step's prompts. Pure; worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Tokens per batch beyond which speed does not increase, by kind of device.
FULL = {"cpu": 256, "cuda": 16_384}
LEAST_SHARE = 0.9  # of the longest prompt: a shorter one begins a new batch, where this one is full


class BatchLimits(NamedTuple):
    """Maximum places of a batch, unless a single prompt has more, and the tokens of a full batch."""

    places: int
    full: int


def batch_ends(lengths: Sequence[int], limits: BatchLimits) -> Iterator[int]:
    """Yield the end of each batch, with little padding, and small only if necessary. `lengths` are descending."""
    start = 0
    tokens = 0
    for place, length in enumerate(lengths):
        longest = lengths[start]
        has_room = (place + 1 - start) * longest <= limits.places
        is_padded = tokens >= limits.full and length < LEAST_SHARE * longest
        if place > start and (is_padded or not has_room):
            yield place
            start = place
            tokens = 0
        tokens += length
    if lengths:
        yield len(lengths)
