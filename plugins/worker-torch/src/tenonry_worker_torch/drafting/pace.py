"""How many tokens to draft for each row, by what verifying brought and took so far. Worker process; plain Python.

Verifying takes longer than decoding one token, and brings nothing where guesses are wrong. A row's credit rises by the
tokens that it gained and falls by what the passes took beyond plain ones, in passes. A row without credit is not
drafted for, for twice as many passes each time: text that does not repeat loses a pass now and then.
"""

from __future__ import annotations

MAX_ROWS = 4
MAX_TOKENS = 16  # of one pass: on few processors each one more takes time
FIRST_DEPTH = 3
MOST_CREDIT = 3.0  # what a row has gained is not spent on another text for long
LONGEST_PAUSE = 6  # as a power of two, in passes
# What a pass took longer, in plain passes: before any was timed, and at most, since others may have delayed it.
USUAL_COST = 0.5
MOST_COST = 4.0
FORGETTING = 0.2


class RowPace:
    """One row: `depth` tokens are drafted next, after `pause` passes; `credit` in plain passes."""

    __slots__ = ("credit", "depth", "misses", "pause")

    def __init__(self) -> None:
        self.depth = FIRST_DEPTH
        self.credit = 0.0
        self.misses = 0
        self.pause = 0


class Pace:
    """The rows of one worker."""

    def __init__(
        self,
        max_num_seqs: int,
        max_drafts: int,
    ) -> None:
        self.max_drafts = max_drafts
        self._rows = [RowPace() for _ in range(max_num_seqs)]
        self._plain_s = 0.0  # what a pass without drafts takes
        self._num_rows = 0  # over so many rows

    def enter(self, row: int) -> None:
        """The row holds another request."""
        self._rows[row] = RowPace()

    def most(
        self,
        rows: list[int],
        left: list[int],
    ) -> list[int]:
        """How many tokens may be drafted for each row in the next pass; each has `left[i]` slots, one for its own."""
        count = len(rows)
        if count > MAX_ROWS:
            return [0] * count
        share = MAX_TOKENS // count - 1
        wanted = []
        for row, slots in zip(rows, left, strict=True):
            pace = self._rows[row]
            if pace.pause:
                pace.pause -= 1
                wanted.append(0)
            else:
                wanted.append(min(pace.depth, slots - 1, share))
        return wanted

    def plain(
        self,
        num_rows: int,
        seconds: float,
    ) -> None:
        """A pass without drafts took so long."""
        if num_rows != self._num_rows:
            self._num_rows = num_rows
            self._plain_s = seconds
        else:
            self._plain_s += FORGETTING * (seconds - self._plain_s)

    def cost(
        self,
        num_rows: int,
        seconds: float,
    ) -> float:
        """What a pass with drafts took beyond one without, in such passes."""
        if num_rows != self._num_rows or not self._plain_s:
            return USUAL_COST
        return min(max(seconds / self._plain_s - 1.0, 0.0), MOST_COST)

    def verified(
        self,
        row: int,
        num_drafts: int,
        num_accepted: int,
        cost: float,
    ) -> None:
        """`cost`: this row's share, in plain passes."""
        pace = self._rows[row]
        if num_accepted == num_drafts:
            pace.depth = min(2 * pace.depth, self.max_drafts)
        else:
            pace.depth = num_accepted + 1
        gain = num_accepted - cost
        pace.credit = min(pace.credit + gain, MOST_CREDIT)
        if pace.credit < 0:
            pace.misses = min(pace.misses + 1, LONGEST_PAUSE)
            pace.pause = 2**pace.misses - 1
            pace.credit = 0.0
        elif gain > 0:
            pace.misses = 0
