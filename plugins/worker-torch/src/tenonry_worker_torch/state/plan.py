"""Assignment of a step's tokens to rows' states: decoding rows together, prompt chunks by length. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tenonry_torch_base.attention.base import AttentionBatch

Places = slice | torch.Tensor
SHORTEST = 16  # maximum tokens of new rows that are computed together


class Decode(NamedTuple):
    """R decoding rows with state. `tokens` are their places in the flattened batch and `rows` those in the state
    tensors, in one order; each a slice if the places are neighbours, else i64[R]. `rows_in_order` i64[R]: the places in
    the state tensors in the order of the batch, if that differs and the tokens are neighbours in it.
    """

    count: int
    tokens: Places
    rows: Places
    rows_in_order: torch.Tensor | None = None


class Pieces(NamedTuple):
    """Pieces of prompts of B rows that are computed together. Either all of the rows have state, or all are new.

    `length`: of the longest. `places`: indices of the B · length tokens, row after row, in the flattened batch, each
    row padded on the left with meaningless tokens; `tokens`: the same without padding. `lengths` i64[B] and `kept`, the
    tokens among the B · length: None if all are.
    """

    count: int
    length: int
    has_state: bool
    rows: Places
    places: Places
    tokens: Places
    lengths: torch.Tensor | None = None
    kept: torch.Tensor | None = None

    def mask(self) -> torch.Tensor | None:
        """Bool [B, length], true for tokens; None without padding."""
        if self.lengths is None:
            return None
        places = torch.arange(self.length, 0, -1, device=self.lengths.device)
        return places <= self.lengths[:, None]


class StatePlan(NamedTuple):
    """The step as layers with state see it. `num_tokens` is the length of the flattened batch."""

    num_tokens: int
    decode: Decode | None
    pieces: list[Pieces]


class StateStep:
    """Shared state of all layers with state of one model: the plan of the running step.

    Without a plan a layer runs unchanged, over one prompt.
    """

    __slots__ = ("plan",)

    def __init__(self) -> None:
        self.plan: StatePlan | None = None


def continues(plan: StatePlan, last: AttentionBatch, batch: AttentionBatch) -> bool:
    """Return True if the plan of the step `last` also fits `batch`: the same requests in the same rows, one token each,
    each with a state.
    """
    if plan.pieces or len(last.row) != len(batch.row):
        return False
    return (
        bool((last.row == batch.row).all())
        and bool((last.generation == batch.generation).all())
        and bool((batch.num_tokens == 1).all())
    )


def plan_of(batch: AttentionBatch, spare_row: int, *, fills_up: bool = False) -> StatePlan:
    """`spare_row`: where the state of tokens goes that belong to no request (generation −1). `fills_up`: new rows of
    similar length are computed together, the shorter ones filled up; otherwise only rows of one length are.
    """
    ends = np.cumsum(batch.num_tokens, dtype=np.int64)
    begins = ends - batch.num_tokens
    rows = np.where(batch.generation < 0, spare_row, batch.row).astype(np.int64)
    is_decode = (batch.num_tokens == 1) & (batch.start > 0)
    chosen = np.flatnonzero(is_decode)
    decode = _decode(begins[chosen], rows[chosen], batch) if len(chosen) else None
    total = int(ends[-1]) if len(ends) else 0
    pieces = []
    others = np.flatnonzero(~is_decode & (batch.num_tokens > 0)).tolist()
    for members in _together(others, batch, total, fills_up=fills_up):
        piece = _pieces(
            rows[members],
            begins[members],
            batch.num_tokens[members].astype(np.int64),
            batch,
            f"state_{len(pieces)}",
        )
        has_state = bool(batch.start[members[0]] > 0)
        pieces.append(piece._replace(has_state=has_state))
    return StatePlan(total, decode, pieces)


def _together(
    places: list[int], batch: AttentionBatch, total: int, *, fills_up: bool
) -> Iterator[list[int]]:
    """Yield places in the batch of rows that share a call of at most `total` tokens including padding: the largest step
    was measured without padding.
    """
    groups: dict[tuple[int, bool], list[int]] = {}
    for place in places:
        length = int(batch.num_tokens[place])
        has_state = bool(batch.start[place] > 0)
        if fills_up and not has_state:
            length = max(SHORTEST, 1 << (length - 1).bit_length())
        groups.setdefault((length, has_state), []).append(place)
    for (length, _), members in groups.items():
        most = max(1, total // length)
        for begin in range(0, len(members), most):
            yield members[begin : begin + most]


def _pieces(
    rows: NDArray[np.int64],
    begins: NDArray[np.int64],
    lengths: NDArray[np.int64],
    batch: AttentionBatch,
    label: str,
) -> Pieces:
    longest = int(lengths.max())
    behind = np.arange(longest) - longest + lengths[:, None]  # below 0 where a row is filled up
    places = begins[:, None] + behind.clip(0)
    kept = np.flatnonzero(behind >= 0)
    tokens = places.reshape(-1)
    found = Pieces(
        count=len(rows),
        length=longest,
        has_state=False,
        rows=_places(rows, f"{label}_rows", batch),
        places=_places(tokens, f"{label}_places", batch),
        tokens=_places(tokens[kept], f"{label}_tokens", batch),
    )
    if len(kept) == len(tokens):
        return found
    return found._replace(
        lengths=batch.put(f"{label}_lengths", lengths), kept=batch.put(f"{label}_kept", kept)
    )


def _decode(tokens: NDArray[np.int64], rows: NDArray[np.int64], batch: AttentionBatch) -> Decode:
    """Rows without a gap are sorted in ascending order: then their states are used in place."""
    order = np.argsort(rows)
    ascending = rows[order]
    in_order = None
    if ascending[-1] - ascending[0] + 1 == len(rows):
        if _are_neighbours(tokens) and not _are_neighbours(rows):
            in_order = batch.put("state_rows_in_order", rows)
        tokens = tokens[order]
        rows = ascending
    return Decode(
        len(rows),
        _places(tokens, "state_tokens", batch),
        _places(rows, "state_rows", batch),
        in_order,
    )


def _are_neighbours(places: NDArray[np.int64]) -> bool:
    return bool((np.diff(places) == 1).all())


def _places(places: NDArray[np.int64], label: str, batch: AttentionBatch) -> Places:
    first = int(places[0])
    if _are_neighbours(places):
        return slice(first, first + len(places))
    return batch.put(label, places)
