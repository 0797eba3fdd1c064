"""Snapshots of recurrent states: their state slots, prefixes, and positions. Engine process.

The state of a recurrent layer after a prefix is one value, and unlike K/V it has no parts: a row can start only where a
snapshot was taken. So prompts are computed in chunks that end on *boundaries*: multiples of an interval, the last full
block before a prompt's last token, and the end of the blocks that a row found in the cache without a snapshot: two
prompts diverged there, and a third may diverge, too. After such a chunk the worker copies the row's state into a slot.

A step's copies are made at its end, and starting rows read their slot before it: a slot that a row starts from may be
filled anew in the same step, but later steps only can find it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tenonry.step import I32, NO_ROWS
from tenonry_kvcache.hashing import Chain
from tenonry_kvcache.prefix import PrefixCache
from tenonry_scheduling import Rows
from tenonry_scheduling.rows import Index

NO_SLOT = -1


class StateSnapshots:
    """State slots by digest, least recently used first, and columns over rows (S).

    start i32[S]: the slot that the row started from, or NO_SLOT; last i32[S]: tokens up to the last full block before
    the last token that the row entered with; common i32[S]: tokens in blocks that were cached when the row entered;
    saves bool[S]: the row's states are published.

    `interval`: tokens between two boundaries, a multiple of the block size.
    """

    def __init__(
        self, num_rows: int, num_slots: int, interval: int, block_size: int, prefix: PrefixCache
    ) -> None:
        self.num_slots = num_slots
        self._interval = interval
        self._size = block_size
        self._prefix = prefix
        self._start = np.zeros(num_rows, np.int32)
        self._last = np.zeros(num_rows, np.int32)
        self._common = np.zeros(num_rows, np.int32)
        self._saves = np.zeros(num_rows, np.bool_)
        self._clear_slots()

    def _clear_slots(self) -> None:
        self._free = list(reversed(range(self.num_slots)))  # the lowest id is allocated first
        self._slot_of: dict[bytes, int] = {}  # published snapshots, least recently used first
        self._filled_now: dict[bytes, int] = {}  # by the current step
        # By row: (tokens, slot) of copies that include a token of unknown id.
        self._unnamed: dict[int, list[tuple[int, int]]] = {}

    @property
    def num_cached(self) -> int:
        """Number of published snapshots."""
        return len(self._slot_of)

    def attach(self, rows: Rows) -> None:
        """Set the scheduler's columns; called once."""
        self._rows = rows

    # ------------------------------------------------------------------ entering
    def longest(self, chain: Chain, lengths: Iterable[int]) -> int:
        """First of `lengths`, in blocks, with a snapshot at its end; 0 without one."""
        for number in lengths:
            if chain[number] in self._slot_of:
                return number
        return 0

    def is_near(self, chain: Chain, first: int, stop: int) -> bool:
        """Return True if this step takes a snapshot at the end of one of the blocks after `first`, up to `stop`."""
        if not self._filled_now:
            return False
        return any(digest in self._filled_now for digest in chain[first + 1 : stop + 1])

    def enter(
        self, row: int, chain: Chain, num_blocks: int, num_cached: int, num_tokens: int
    ) -> None:
        """Start the row after `num_blocks` of `num_cached` cached blocks, with `num_tokens` tokens."""
        slot = NO_SLOT
        if num_blocks:
            slot = self._touch(chain[num_blocks])
        self._start[row] = slot
        num_full = (num_tokens - 1) // self._size
        self._last[row] = num_full * self._size
        self._common[row] = num_cached * self._size
        self._saves[row] = True

    def _touch(self, digest: bytes) -> int:
        """Mark a snapshot as most recently used; returns its slot."""
        slot = self._slot_of.pop(digest)
        self._slot_of[digest] = slot
        return slot

    def start_of(self, row: int) -> I32:
        """Slot that the row starts from, or an empty array."""
        slot = self._start[row]
        return NO_ROWS if slot == NO_SLOT else np.array([slot], np.int32)

    # ------------------------------------------------------------------ chunks and copies
    def cut(self, rows: Index, num_tokens: I32) -> I32:
        """Number of `num_tokens` each row may compute before its next boundary."""
        if num_tokens.max(initial=0) <= 1:
            return num_tokens
        start = self._rows.num_computed[rows]
        boundary = (start // self._interval + 1) * self._interval
        for column in (self._last, self._common):
            ahead = column[rows]
            nearest = np.minimum(boundary, ahead)
            boundary = np.where(ahead > start, nearest, boundary)
        left = np.minimum(num_tokens, boundary - start)
        cut = np.where(self._saves[rows], left, num_tokens)
        return cut.astype(np.int32)

    def save(self, rows: Index, end: I32) -> tuple[list[int], list[int]]:
        """Save the states of `rows`, which run up to token `end` in this step: returns (rows whose state is copied
        after it, their slots).
        """
        if self._unnamed:
            for row in list(self._unnamed):
                self._name(row, self._num_known(row))
        is_multiple = end % self._interval == 0
        is_last = end == self._last[rows]
        is_common = end == self._common[rows]
        is_boundary = is_multiple | is_last | is_common
        is_boundary &= self._saves[rows]
        saved = []
        slots = []
        for i in is_boundary.nonzero()[0].tolist():
            row = int(rows[i])
            slot = self._save_row(row, int(end[i]))
            if slot != NO_SLOT:
                saved.append(row)
                slots.append(slot)
        return saved, slots

    def _save_row(self, row: int, end: int) -> int:
        """Slot for the row's state after `end` tokens; NO_SLOT if it is cached already, or no slot is free."""
        digest = None
        if end <= self._num_known(row):
            digest = self._digest(row, end)
            if digest in self._slot_of:
                self._touch(digest)
                return NO_SLOT
            if digest in self._filled_now:
                return NO_SLOT
        slot = self._take()
        if slot == NO_SLOT:
            return NO_SLOT
        if digest is None:
            self._unnamed.setdefault(row, []).append((end, slot))
        else:
            self._filled_now[digest] = slot
        return slot

    def _digest(self, row: int, num_tokens: int) -> bytes:
        """Name of the row's first `num_tokens` tokens, whole blocks of known ids."""
        number = num_tokens // self._size
        return self._prefix.chain_of(self._rows, row, number)[number]

    def _num_known(self, row: int) -> int:
        """Leading tokens of the row whose ids are known."""
        return int(self._rows.num_tokens[row] - self._rows.pending[row])

    def _take(self) -> int:
        """Allocate a free slot, or that of the least recently used snapshot; NO_SLOT if this step fills them all."""
        if self._free:
            return self._free.pop()
        if not self._slot_of:
            return NO_SLOT
        oldest = next(iter(self._slot_of))
        return self._slot_of.pop(oldest)

    def _name(self, row: int, num_known: int) -> None:
        """Register the row's snapshots whose tokens are among the first `num_known` ones."""
        waiting = []
        for end, slot in self._unnamed.pop(row):
            if end > num_known:
                waiting.append((end, slot))
                continue
            digest = self._digest(row, end)
            if digest in self._slot_of or digest in self._filled_now:
                self._free.append(slot)
            else:
                self._slot_of[digest] = slot
        if waiting:
            self._unnamed[row] = waiting

    def end_step(self) -> None:
        """Make the snapshots of the completed step available to later steps."""
        if self._filled_now:
            self._slot_of |= self._filled_now
            self._filled_now = {}

    # ------------------------------------------------------------------ leaving
    def leave(self, row: int, num_known: int) -> None:
        """Free the row; `num_known` of its computed tokens are known, and its digests still exist."""
        if row in self._unnamed:
            self._name(row, num_known)
            unknown = self._unnamed.pop(row, [])
            self._free += [slot for _, slot in unknown]

    def forget(self, chain: Chain) -> None:
        """Remove snapshots of these prefixes from the cache. Between two steps only."""
        for digest in chain:
            slot = self._slot_of.pop(digest, NO_SLOT)
            if slot != NO_SLOT:
                self._free.append(slot)

    def reset(self) -> None:
        """Drop all snapshots, including later ones of rows in use."""
        self._clear_slots()
        self._saves.fill(False)
