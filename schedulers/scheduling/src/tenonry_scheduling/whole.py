"""Parts of prompts that no step may split: the tokens of an image with bidirectional attention. Engine process.

A chunk ends before such a piece or after it. `Media.whole` of a request holds their positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tenonry.errors import RequestError
from tenonry.request import Request
from tenonry.step import I32
from tenonry_scheduling.rows import Index

Piece = tuple[int, int]  # its first token in the prompt, and the one after its last


class WholePieces:
    """Indivisible pieces. `by_row`: in order, those with an uncomputed token."""

    __slots__ = ("by_row",)

    def __init__(self) -> None:
        self.by_row: dict[int, list[Piece]] = {}

    def enter(self, request: Request, row: int, num_computed: int) -> None:
        """Start the request in `row`; `num_computed` of its tokens have K/V."""
        pieces = pieces_after(request, num_computed)
        if pieces:
            self.by_row[row] = pieces

    def leave(self, row: int) -> None:
        """Free the row."""
        self.by_row.pop(row, None)

    def advance(self, row: int, end: int) -> None:
        """Advance the row's tokens to `end` in this step."""
        rest = [piece for piece in self.by_row.pop(row, ()) if piece[1] > end]
        if rest:
            self.by_row[row] = rest

    def fit(self, row: int, start: int, count: int, left: int) -> int:
        """Number of tokens that the row may compute from `start` on instead of `count`, at most `left`."""
        return uncut(self.by_row.get(row, ()), start, count, left)

    def fit_rows(
        self, rows: Index, start: I32, wanted: I32, *, may_extend: bool
    ) -> tuple[Index, I32]:
        """Return rows that may compute tokens, with their numbers. `may_extend`: a row may compute more than `wanted`,
        up to the end of its piece.
        """
        count = wanted.copy()
        for place in np.isin(rows, list(self.by_row)).nonzero()[0].tolist():
            begin = int(start[place])
            had = int(count[place])
            pieces = self.by_row[int(rows[place])]
            count[place] = uncut(pieces, begin, had, pieces[-1][1] if may_extend else had)
        keep = count.nonzero()[0]
        return rows[keep], count[keep]


def uncut(pieces: Sequence[Piece], start: int, count: int, left: int) -> int:
    """`count` tokens from `start` on, or fewer, up to the piece in which they would end; the whole piece if `start` is
    in it and `left` tokens suffice, else none.
    """
    end = start + count
    for begin, stop in pieces:
        if begin < end < stop:
            if begin > start:
                return begin - start
            return stop - start if stop - start <= left else 0
    return count


def pieces_after(request: Request, num_computed: int) -> list[Piece]:
    """Pieces of a request with a token at `num_computed` or later."""
    media = request.source.media
    if media is None:
        return []
    pieces = ((begin, begin + count) for begin, count in media.whole.tolist())
    return [piece for piece in pieces if piece[1] > num_computed]


def check_pieces(request: Request, most: int) -> None:
    """Raise RequestError for invalid pieces, and for one of more than `most` tokens."""
    end = 0
    for begin, stop in pieces_after(request, -1):
        if begin < end or stop <= begin or stop > request.num_prompt_tokens:
            raise RequestError(
                f"media.whole: the piece from {begin} to {stop} must begin at {end} or later, and end within the "
                f"{request.num_prompt_tokens} tokens of the prompt",
                "media",
            )
        end = stop
        if stop - begin > most:
            raise RequestError(
                f"an image has {stop - begin} tokens, which see one another and are computed in one step, and a step "
                f"has room for {most} beside requests that decode; the operator can raise --max-num-batched-tokens by "
                f"{stop - begin - most}, or lower --max-num-seqs",
                "messages",
            )
