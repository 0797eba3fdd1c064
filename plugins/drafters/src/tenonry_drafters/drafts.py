"""Calls the drafter, and shares its drafts with all ranks. Worker process."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tenonry_drafters.controller import MAX_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tenonry.step import NewRow
    from tenonry_drafters.base import I32, Drafter
    from tenonry_drafters.controller import DraftController
    from tenonry_scheduling.columns import BatchState

logger = logging.getLogger("tenonry.worker")
NONE = -1


class Proposal(NamedTuple):
    """Drafts of R rows: `count` i32[R], `token_ids` i32[R, K], −1 behind each row's own; `total` of them."""

    count: I32
    token_ids: I32
    total: int


NOTHING = Proposal(np.empty(0, np.int32), np.empty((0, 0), np.int32), 0)


class Drafts:
    """`cut(row, length, token_ids)`: how many of the ids could follow the row's `length` tokens under its grammar.
    `share`: the first rank's array, on all ranks; None for one rank. `drafter` is None on ranks that do not draft, and
    once it has failed.
    """

    def __init__(
        self,
        drafter: Drafter | None,
        controller: DraftController,
        state: BatchState,
        vocab_size: int,
        cut: Callable[[int, int, I32], int],
        share: Callable[[NDArray[np.int64]], NDArray[np.int64]] | None = None,
    ) -> None:
        self.drafter = drafter
        self.controller = controller
        self._state = state
        self._vocab_size = vocab_size
        self._cut = cut
        self._share = share

    def enter(self, new: NewRow) -> None:
        self.controller.enter(new.row)
        if self.drafter is not None:
            try:
                self.drafter.enter(new)
            except Exception as error:  # noqa: BLE001 - serving continues without drafts
                self._give_up(error)

    def leave(self, row: int) -> None:
        if self.drafter is not None:
            try:
                self.drafter.leave(row)
            except Exception as error:  # noqa: BLE001 - as `enter`
                self._give_up(error)

    def rests(self, numbers: list[int]) -> bool:
        """Return True if nothing would be drafted for these rows in the next passes."""
        return (
            self.drafter is None or len(numbers) > MAX_ROWS or not self.controller.may_pay(numbers)
        )

    def propose(
        self, rows: I32, numbers: list[int], left: I32, *, is_over: bool
    ) -> Proposal | None:
        """Drafts for `rows`, in a list `numbers`, of which each has `left[row]` slots; None if the first rank's clock
        reports `is_over`.
        """
        if self._share is None:
            if is_over:
                return None
            return self._ask(rows, numbers, left) if self.controller.may_pay(numbers) else NOTHING
        message = np.full((1 + len(rows), self.controller.max_drafts), NONE, np.int64)
        if not is_over:
            found = self._ask(rows, numbers, left)
            if found.total:
                message[1:, : found.token_ids.shape[1]] = found.token_ids
        message[0, 0] = is_over
        message = self._share(message)
        if message[0, 0]:
            return None
        token_ids = message[1:].astype(np.int32)
        count = (token_ids != NONE).sum(axis=1, dtype=np.int32)
        return Proposal(count, token_ids, int(count.sum()))

    def _ask(self, rows: I32, numbers: list[int], left: I32) -> Proposal:
        """Drafts of this rank."""
        if self.drafter is None or not self.controller.may_pay(numbers):
            return NOTHING
        begin = time.perf_counter()
        lengths = self._state.num_computed[rows] + 1
        most = self.controller.most(numbers, left[rows].tolist(), lengths.tolist())
        places = [place for place, wanted in enumerate(most) if wanted > 0]
        if not places:
            return NOTHING
        asked = rows[places].tolist()
        found = self._proposed(asked, [most[place] for place in places])
        self.controller.asked(asked, lengths[places].tolist(), time.perf_counter() - begin)
        width = max(map(len, found))
        if not width:
            return NOTHING
        count = np.zeros(len(rows), np.int32)
        token_ids = np.full((len(rows), width), NONE, np.int32)
        for place, ids in zip(places, found, strict=True):
            count[place] = len(ids)
            token_ids[place, : len(ids)] = ids
        return Proposal(count, token_ids, int(count.sum()))

    def _proposed(self, rows: list[int], most: list[int]) -> list[I32]:
        """Proposals of the drafter, checked and truncated; none if it fails."""
        nothing = [np.empty(0, np.int32)] * len(rows)
        drafter = self.drafter
        if drafter is None:
            return nothing
        state = self._state
        histories = []
        for row in rows:
            history = state.token_ids[row, : state.num_computed[row] + 1]
            history.flags.writeable = False
            histories.append(history)
        try:
            found = [np.asarray(ids, np.int32) for ids in drafter.propose(rows, histories, most)]
            self._check(found, most)
        except Exception as error:  # noqa: BLE001 - as `enter`
            self._give_up(error)
            return nothing
        kept = []
        for row, ids in zip(rows, found, strict=True):
            count = self._cut(row, int(state.num_computed[row]) + 1, ids) if len(ids) else 0
            kept.append(ids[:count])
        return kept

    def _check(self, found: list[I32], most: list[int]) -> None:
        if len(found) != len(most):
            raise ValueError(f"it proposed for {len(found)} rows, and was asked about {len(most)}")
        for ids, limit in zip(found, most, strict=True):
            if ids.ndim != 1 or len(ids) > limit:
                raise ValueError(f"it proposed ids of shape {ids.shape}; a row has at most {limit}")
            if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= self._vocab_size):
                raise ValueError(
                    f"it proposed ids {ids.tolist()}, and the vocabulary ends before {self._vocab_size}"
                )

    def verified(self, rows: I32, proposal: Proposal, accepted: I32, seconds: float) -> None:
        """`accepted[i]`: number of accepted draft tokens of `rows[i]`; `seconds`: duration of the pass."""
        if self.drafter is None:
            return
        found = {
            int(rows[place]): (int(proposal.count[place]), int(accepted[place]))
            for place in np.flatnonzero(proposal.count).tolist()
        }
        self.controller.verified(len(rows), seconds, found)
        for row, (count, right) in found.items():
            try:
                self.drafter.accept(row, count, right)
            except Exception as error:  # noqa: BLE001 - as `enter`
                self._give_up(error)
                return

    def _give_up(self, error: Exception) -> None:
        logger.error(
            "Disabled the drafter %s, which failed; decoding one token at a time: %s: %s",
            type(self.drafter).__name__,
            type(error).__name__,
            error,
            exc_info=error,
        )
        self.drafter = None
