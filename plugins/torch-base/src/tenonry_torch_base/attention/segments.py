"""Division of a step's rows into pieces that attend together. Pure numpy, on the host; worker process.

Rows with one query ("decode") go together, padded to the longest of a group. Rows with several queries ("prefill") are
segments: neighbours of equal length whose whole context is in this step share one, the others have one each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SMALL_WASTE = 4096  # padded tokens that are not worth another group


class Segment:
    """`count` sequences of `length` queries each, from flattened token `token` on.

    `start` is the position of the first query and `row` the row, for one sequence with computed tokens before it;
    a segment with `start` 0 sees nothing but its own keys. `last_seen` i64[length]: the last position that each query
    of one sequence sees, where some see later ones than their own.
    """

    __slots__ = ("count", "last_seen", "length", "row", "start", "token")

    def __init__(self, token: int, count: int, length: int, row: int, start: int) -> None:
        self.token = token
        self.count = count
        self.length = length
        self.row = row
        self.start = start
        self.last_seen: NDArray[np.int64] | None = None


def prefill_segments(
    row: NDArray[np.int32],
    num_tokens: NDArray[np.int32],
    start: NDArray[np.int32],
    last_seen: NDArray[np.int64] | None = None,
) -> list[Segment]:
    """Return the segments of all rows with several queries; the only loop over sequences, and never in pure decoding.

    `last_seen`: as in `AttentionBatch`; a sequence whose queries attend to later keys has its own segment.
    """
    first_token = np.cumsum(num_tokens) - num_tokens
    segments: list[Segment] = []
    for i in np.flatnonzero(num_tokens > 1):
        token = int(first_token[i])
        length = int(num_tokens[i])
        begin = int(start[i])
        last = segments[-1] if segments else None
        later = None if last_seen is None else _later(last_seen[token : token + length], begin)
        if (
            last is not None
            and later is None
            and last.last_seen is None
            and begin == 0 == last.start
            and length == last.length
            and token == last.token + last.count * last.length
        ):
            last.count += 1
        else:
            segments.append(Segment(token, 1, length, int(row[i]), begin))
            segments[-1].last_seen = later
    return segments


def _later(last_seen: NDArray[np.int64], start: int) -> NDArray[np.int64] | None:
    """Last visible positions of the queries from position `start` on, if any sees beyond its own."""
    own = np.arange(start, start + len(last_seen))
    return None if np.array_equal(last_seen, own) else last_seen


def length_groups(lengths: NDArray[np.int64], max_tokens: int) -> list[tuple[int, int]]:
    """Cut rows, sorted by falling length, into runs [begin, end) whose padded size stays within `max_tokens`.

    A run is also cut where padding would more than double the work, unless the waste is small.
    """
    groups: list[tuple[int, int]] = []
    begin = 0
    total = len(lengths)
    while begin < total:
        longest = max(int(lengths[begin]), 1)
        end = min(total, begin + max(1, max_tokens // longest))
        waste = longest * (end - begin) - int(lengths[begin:end].sum())
        if waste > SMALL_WASTE:
            # The first row that is shorter than half of the longest.
            count = np.searchsorted(-lengths[begin:end], -(longest // 2), side="right")
            end = begin + max(int(count), 1)
        groups.append((begin, end))
        begin = end
    return groups
