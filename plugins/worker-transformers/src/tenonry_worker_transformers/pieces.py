"""Rows that are computed together: a piece holds one row or several, with one cache object for all. Worker process."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import torch

from tenonry_worker_transformers.trees import RowDimensions, padded

MOST_PADDING = 1.25  # maximum padded positions per position; padding takes memory outside of blocks
FREE_PADDING = 16  # positions per row that may be padded anyway


class Batching(enum.IntEnum):
    """Sets of rows that may be computed together."""

    NONE = 0
    EQUAL = 1  # those of equal length
    MIXED = 2  # all, the shorter ones with padding on the left


class Piece:
    """`rows`; `input_ids` i64[B, L], with `padding` of each on their left; `kwargs`: arguments for the next call."""

    __slots__ = ("input_ids", "kwargs", "padding", "rows")

    def __init__(
        self,
        rows: list[int],
        input_ids: torch.Tensor,
        kwargs: dict[str, Any],
        padding: list[int] | None = None,
    ) -> None:
        self.rows = rows
        self.input_ids = input_ids
        self.kwargs = kwargs
        self.padding = padding or [0] * len(rows)

    @property
    def length(self) -> int:
        """Positions, padding included."""
        return self.input_ids.shape[1]

    @property
    def num_tokens(self) -> int:
        """Tokens of all rows, without padding."""
        return self.length * len(self.rows) - sum(self.padding)

    @property
    def is_mostly_padding(self) -> bool:
        """True if padding outweighs the tokens, so that recomputing them is cheaper."""
        return sum(self.padding) > self.num_tokens + FREE_PADDING * len(self.rows)

    def ids_of(self, row: int) -> torch.Tensor:
        """i64[1, L] of one row, without padding."""
        place = self.rows.index(row)
        return self.input_ids[place : place + 1, self.padding[place] :]


class Batcher:
    """Joins pieces and takes rows out of them."""

    def __init__(self, mask_name: str) -> None:
        self._mask_name = mask_name
        self._dimensions = RowDimensions()

    def joined(self, pieces: Sequence[Piece]) -> Piece:
        """One piece of the rows of all. Raises NotBatchable; the pieces stay as they are then."""
        longest = max(piece.length for piece in pieces)
        shifts = [longest - piece.length for piece in pieces]
        padding = [
            pad + shift
            for piece, shift in zip(pieces, shifts, strict=True)
            for pad in piece.padding
        ]
        for piece in pieces:
            if len(piece.rows) == 1:
                self._dimensions.learn(piece.kwargs)
        kwargs = [piece.kwargs for piece in pieces]
        if any(padding) or len({entry.get(self._mask_name) is None for entry in kwargs}) > 1:
            kwargs = [self._with_mask(piece) for piece in pieces]
        input_ids = padded([piece.input_ids for piece in pieces], 0, "input_ids")
        rows = [row for piece in pieces for row in piece.rows]
        return Piece(rows, torch.cat(input_ids), self._dimensions.joined(kwargs, shifts), padding)

    def taken(self, piece: Piece, rows: Sequence[int]) -> Piece:
        """Some rows of a piece. Their padding stays."""
        places = [piece.rows.index(row) for row in rows]
        index = torch.tensor(places, device=piece.input_ids.device)
        return Piece(
            list(rows),
            piece.input_ids[index],
            self._dimensions.taken(piece.kwargs, index),
            [piece.padding[place] for place in places],
        )

    def _with_mask(self, piece: Piece) -> dict[str, Any]:
        """Padding is masked; the mask covers the next token, too, as it does in `generate`."""
        if piece.kwargs.get(self._mask_name) is not None:
            return piece.kwargs
        ids = piece.input_ids
        mask = torch.ones((len(piece.rows), piece.length + 1), dtype=torch.long, device=ids.device)
        self._dimensions.learn({self._mask_name: mask[:1]})
        return piece.kwargs | {self._mask_name: mask}


def pool_bytes(batching: Batching, free: int) -> int:
    """Part of a device's `free` bytes that K/V of rows may fill: while rows are joined or separated, the old and the
    new tensors coexist, and the new ones are padded.
    """
    return free if batching is Batching.NONE else int(free / (1 + MOST_PADDING))


def groups(batching: Batching, pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Pieces to merge: neighbours in length, as long as padding is worth it."""
    if batching is Batching.NONE:
        return [[piece] for piece in pieces]
    found: list[list[Piece]] = []
    for piece in sorted(pieces, key=lambda piece: -piece.length):
        if found and _may_join(batching, [*found[-1], piece]):
            found[-1].append(piece)
        else:
            found.append([piece])
    return found


def _may_join(batching: Batching, pieces: Sequence[Piece]) -> bool:
    longest = pieces[0].length
    if all(piece.length == longest for piece in pieces):
        return True
    if batching is Batching.EQUAL:
        return False
    count = sum(len(piece.rows) for piece in pieces)
    tokens = sum(piece.num_tokens for piece in pieces)
    return count * longest <= MOST_PADDING * tokens + FREE_PADDING * count
