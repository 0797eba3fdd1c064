"""Which tokens of a step belong to which row's state: decoding rows together, and pieces of prompts of one length.
Worker process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenonry_worker_torch.attention.base import AttentionBatch

Places = slice | torch.Tensor


class Decode(NamedTuple):
    """R rows that compute one token each and have state. `tokens` are their places in the flattened batch and `rows`
    those in the state tensors, in one order; each a slice where the places are neighbours, else i64[R].
    """

    count: int
    tokens: Places
    rows: Places


class Pieces(NamedTuple):
    """Pieces of prompts of one length, computed together: `begins` are their first tokens in the flattened batch.

    Either all of their rows have state, or all are new.
    """

    length: int
    has_state: bool
    rows: list[int]
    begins: list[int]


class StatePlan(NamedTuple):
    """The step as layers with state see it. `num_tokens` is the length of the flattened batch."""

    num_tokens: int
    decode: Decode | None
    pieces: list[Pieces]


class StateStep:
    """What all layers with state of one model share: the plan of the running step.

    Without a plan a layer runs as it is, over one prompt.
    """

    __slots__ = ("plan",)

    def __init__(self) -> None:
        self.plan: StatePlan | None = None


def plan_of(
    batch: AttentionBatch,
    spare_row: int,
) -> StatePlan:
    """`spare_row`: where the state of tokens goes that belong to no request (generation −1)."""
    ends = np.cumsum(batch.num_tokens, dtype=np.int64)
    begins = ends - batch.num_tokens
    rows = np.where(batch.generation < 0, spare_row, batch.row).astype(np.int64)
    is_decode = (batch.num_tokens == 1) & (batch.start > 0)
    chosen = np.flatnonzero(is_decode)
    decode = _decode(begins[chosen], rows[chosen], batch) if len(chosen) else None
    pieces: dict[tuple[int, bool], Pieces] = {}
    for i in np.flatnonzero(~is_decode & (batch.num_tokens > 0)):
        kind = (int(batch.num_tokens[i]), bool(batch.start[i] > 0))
        found = pieces.setdefault(kind, Pieces(*kind, [], []))
        found.rows.append(int(rows[i]))
        found.begins.append(int(begins[i]))
    return StatePlan(int(ends[-1]) if len(ends) else 0, decode, list(pieces.values()))


def _decode(
    tokens: NDArray[np.int64],
    rows: NDArray[np.int64],
    batch: AttentionBatch,
) -> Decode:
    """Rows without a gap are taken in ascending order: then their states are used where they are."""
    order = np.argsort(rows)
    ascending = rows[order]
    if ascending[-1] - ascending[0] + 1 == len(rows):
        tokens = tokens[order]
        rows = ascending
    return Decode(
        len(rows),
        _places(tokens, "state_tokens", batch),
        _places(rows, "state_rows", batch),
    )


def _places(
    places: NDArray[np.int64],
    label: str,
    batch: AttentionBatch,
) -> Places:
    first = int(places[0])
    if bool((np.diff(places) == 1).all()):
        return slice(first, first + len(places))
    return batch.put(label, places)
