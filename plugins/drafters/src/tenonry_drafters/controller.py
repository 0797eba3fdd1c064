"""Number of draft tokens for each row, by the benefit and cost of drafting so far. Worker process; plain Python.

Drafting takes time, verifying takes longer than decoding one token, and both are wasted on wrong drafts. A row's
credit, in tokens, rises by the tokens that it gained, and falls by those that all rows of the pass would have decoded
in the additional time of drafting and verifying. A row without credit is not drafted for, and earns a little in each
pass, so a text with wrong drafts loses at most FIRST_CREDIT, one try, and LOSS of its passes.

A drafter may have to read all of a row before it can draft. Its time per token is measured, and many tokens are read if
that is little compared with the row's time since it entered. This cost is not charged afterwards.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_ROWS = 4
MAX_TOKENS = 16  # of one pass: on few processors each one more takes time
FIRST_DEPTH = 3
FIRST_CREDIT = 1.0
MOST_CREDIT = 3.0  # what a row has gained is not spent on another text for long
LOSS = 1 / 256
READING_SHARE = 1 / 32  # of a row's time, beyond a pass
# What a pass with drafts took longer, in plain passes, before any was timed; more than twice the usual and this is not
# accepted immediately, since others may have delayed the pass.
USUAL_COST = 0.5
FORGETTING = 0.2
MANY_TOKENS = 32  # unseen by a drafter: this many take noticeable time
MOST_DRAFTED = 64  # passes with drafts, before one without is timed again


class Asked(NamedTuple):
    """A call of the drafter for `rows`, which took `seconds`; `unseen` tokens of them were new to it."""

    rows: list[int]
    seconds: float
    unseen: int


NOT_ASKED = Asked([], 0.0, 0)


class RowCredit:
    """One row: `depth` tokens are drafted next, if there is `credit`; `num_seen` tokens were shown to the drafter."""

    __slots__ = ("credit", "depth", "entered_s", "num_seen")

    def __init__(self, entered_s: float = 0.0) -> None:
        self.entered_s = entered_s
        self.depth = FIRST_DEPTH
        self.credit = FIRST_CREDIT
        self.num_seen = 0


class DraftController:
    """The rows of one worker. In each pass: `most`; `asked`, if the drafter was called; then `plain` or `verified`."""

    def __init__(
        self, max_num_seqs: int, max_drafts: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.max_drafts = max_drafts
        self._clock = clock
        self.rows = [RowCredit() for _ in range(max_num_seqs)]
        self._plain_s = [0.0] * (
            MAX_ROWS + 1
        )  # what a pass without drafts takes, by the number of rows
        self._num_drafted = [0] * (MAX_ROWS + 1)  # passes with drafts since then
        self._asking_s = 0.0  # what the drafter takes that has read nearly all
        self._unseen_s = 0.0  # and for a token that is new to it
        self._usual_cost = USUAL_COST
        self._asked = NOT_ASKED

    def enter(self, row: int) -> None:
        """The row holds another request."""
        self.rows[row] = RowCredit(self._clock())

    def may_pay(self, rows: list[int]) -> bool:
        """Return True if any of the rows has credit: else `most` need not be called."""
        for row in rows:  # noqa: SIM110 - in every pass: half the time of any()
            if self.rows[row].credit > 0:
                return True
        return False

    def most(self, rows: list[int], left: list[int], lengths: list[int]) -> list[int]:
        """Maximum number of draft tokens of each row in the next pass.

        Each has `left[i]` slots, one for its own next token, and `lengths[i]` tokens so far.
        """
        count = len(rows)
        if count > MAX_ROWS or not self._plain_s[count]:
            return [0] * count
        if self._num_drafted[count] >= MOST_DRAFTED:
            return [0] * count
        share = MAX_TOKENS // count - 1
        wanted = []
        for row, slots, length in zip(rows, left, lengths, strict=True):
            drafted = self.rows[row]
            pays = drafted.credit > 0 and self._may_read(drafted, length, count)
            wanted.append(min(drafted.depth, slots - 1, share) if pays else 0)
        return wanted

    def _may_read(self, drafted: RowCredit, length: int, num_rows: int) -> bool:
        """Return True if the drafter may read a row's unseen tokens: each of the rows waits for it."""
        reading_s = self._reading_s(length - drafted.num_seen) * num_rows
        if not reading_s:
            return True
        taken_s = self._clock() - drafted.entered_s
        return reading_s <= self._plain_s[num_rows] + READING_SHARE * taken_s

    def asked(self, rows: list[int], lengths: list[int], seconds: float) -> None:
        """Record a call of the drafter for some rows of these lengths, and its duration."""
        unseen = 0
        for row, length in zip(rows, lengths, strict=True):
            drafted = self.rows[row]
            unseen += length - drafted.num_seen
            drafted.num_seen = length
        if unseen <= MANY_TOKENS:
            self._asking_s = _followed(self._asking_s, seconds)
        elif unseen > 2 * MANY_TOKENS:
            reading_s = max(seconds - self._asking_s, 0.0)
            self._unseen_s = _followed(self._unseen_s, reading_s / unseen)
        self._asked = Asked(rows, seconds, unseen)

    def plain(self, rows: list[int], seconds: float) -> None:
        """Record the duration of a pass without drafts, the drafter's time excluded."""
        count = len(rows)
        asked = self._take_asked()
        if count > MAX_ROWS:
            return
        self._plain_s[count] = _followed(self._plain_s[count], seconds)
        self._num_drafted[count] = 0
        for row in rows:
            self.rows[row].credit += LOSS
        if not asked.rows:
            return
        # What delays a pass delays all of its rows.
        delayed = count / len(asked.rows)
        cost = min(asked.seconds / self._plain_s[count], self._usual_cost)
        for row in asked.rows:
            self.rows[row].credit -= cost * delayed

    def verified(self, num_rows: int, seconds: float, found: dict[int, tuple[int, int]]) -> None:
        """A pass of `num_rows` took so long; by row, how many drafts were verified, and how many of them were right."""
        asked = self._take_asked()
        self._num_drafted[num_rows] += 1
        plain_s = self._plain_s[num_rows]
        if seconds < plain_s:  # though it computes more: what was timed had been delayed
            plain_s = _followed(plain_s, seconds)
            self._plain_s[num_rows] = plain_s
        reading_s = min(self._reading_s(asked.unseen), asked.seconds)
        cost = (seconds + asked.seconds - reading_s) / plain_s - 1.0
        cost = self._bounded(max(cost, 0.0))
        delayed = num_rows / len(asked.rows)
        for row in asked.rows:
            drafted = self.rows[row]
            num_drafts, num_accepted = found.get(row, (0, 0))
            gain = num_accepted - cost * delayed
            drafted.credit = min(drafted.credit + gain, max(drafted.credit, MOST_CREDIT))
            if num_accepted < num_drafts:
                drafted.depth = num_accepted + 1
            elif num_drafts:
                drafted.depth = min(2 * drafted.depth, self.max_drafts)

    def _take_asked(self) -> Asked:
        asked = self._asked
        self._asked = NOT_ASKED
        return asked

    def _reading_s(self, unseen: int) -> float:
        """Time of a drafter to read `unseen` tokens, if these are many."""
        return unseen * self._unseen_s if unseen > MANY_TOKENS else 0.0

    def _bounded(self, cost: float) -> float:
        """A cost in plain passes, as far as it is believed to be that of drafts."""
        believed = min(cost, 2 * self._usual_cost + USUAL_COST)
        self._usual_cost += FORGETTING * (believed - self._usual_cost)
        return believed


def _followed(mean: float, value: float) -> float:
    """A mean of the latest values; 0 before the first."""
    return mean + FORGETTING * (value - mean) if mean else value
