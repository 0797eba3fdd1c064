"""Interface between schedulers and the KV block allocator. Engine process; `tenonry-kvcache` implements it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from tenonry.request import Request
from tenonry.step import I32
from tenonry_scheduling.rows import Index, Rows


class Match(NamedTuple):
    """Cached prefix of a request: `num_computed` tokens with K/V; `ready` if they can be used now."""

    num_computed: int
    ready: bool = True


class NewBlocks(NamedTuple):
    """Blocks added to rows; those of one row are adjacent. row i32[B], group i32[B], block id i32[B].

    In a recurrent group the id is that of a state slot, the target of the row's state after the step.
    """

    row: I32
    group: I32
    block_id: I32


class Transferred(NamedTuple):
    """Effects of completed KV transfers.

    `arrived`: (waiting row that may run now, its computed tokens). `lost`: rows that ran on contents which were never
    loaded, and must be recomputed.
    """

    arrived: list[tuple[int, int]]
    lost: list[int]


class BlockManager(ABC):
    """KV blocks by row. No method leaks a block, not even on failure."""

    @abstractmethod
    def attach(self, rows: Rows) -> None:
        """Set the scheduler's columns; called once, before every other method."""

    @abstractmethod
    def match(self, request: Request, row: int) -> Match | None:
        """Assign the cached blocks of its longest known prefix to the row, never covering the last token.

        `request.token_ids` are all its tokens. None: retry in a later step (nothing was attached). `ready=False`:
        blocks are attached, but their contents are still being loaded; `transfers` will name the row.
        """

    @abstractmethod
    def grow(self, rows: Index, num_tokens: I32) -> NewBlocks | None:
        """Allocate blocks for `num_tokens[i]` tokens of each of `rows`; if they do not suffice, allocate none and
        return None.

        Called before the columns advance: blocks of sliding groups that lie wholly before the window of the row's next
        token may be reallocated in this very step.
        """

    def reserve(self, row: int, num_tokens: int, end: int) -> bool:
        """Allocate blocks for the `num_tokens` tokens of a starting row, of which this step computes those up to `end`.

        False, without a change, if there are not enough. Where blocks are released during the sequence, those of
        later steps only have to be free.
        """
        rows = np.array([row])
        return self.grow(rows, np.array([num_tokens], np.int32)) is not None

    @abstractmethod
    def register(self, rows: Index, num_known: I32) -> None:
        """Cache full blocks: `num_known[i]` leading tokens of `rows[i]` have known ids and are computed or scheduled.

        May leave some for a later call, to bound the work of one step.
        """

    @property
    def takes_snapshots(self) -> bool:
        """True if the scheduler must call `cut` and `save_states`: the model keeps states, and prefixes are shared."""
        return False

    def cut(self, rows: Index, num_tokens: I32) -> I32:
        """Number of the `num_tokens[i]` ≥ 1 tokens each row may compute in one step, at least 1: up to its next
        snapshot.

        Called with the sizes of prompt chunks, before the columns advance.
        """
        raise TypeError(f"{type(self).__qualname__} takes snapshots and must define cut")

    def cut_row(self, row: int, num_tokens: int) -> int:
        """As `cut`, for one row."""
        rows = np.array([row])
        counts = np.array([num_tokens], np.int32)
        cut = self.cut(rows, counts)
        return int(cut[0])

    def save_states(self, rows: Index, num_tokens: I32) -> NewBlocks:
        """Allocate state slots for the states of `rows[i]`, which runs up to token `num_tokens[i]` in this step.

        Called once per row and step, after `register`.
        """
        raise TypeError(f"{type(self).__qualname__} takes snapshots and must define save_states")

    @abstractmethod
    def free(
        self, request: Request, row: int, *, num_known: int, drop: bool = False
    ) -> dict[str, Any] | None:
        """Free the row's blocks and cache the full ones. `drop`: remove all of them from the cache instead.

        `num_known` 0 means that the row never ran. Returns the KV connector's parameters for the client of a finished
        request, or None.
        """

    @abstractmethod
    def forget(self, request: Request) -> None:
        """Drop everything stored about an ended request."""

    @abstractmethod
    def table(self, row: int) -> tuple[I32, ...]:
        """Block ids of the row per group, in order (a copy); for a recurrent group its initial state slot."""

    @abstractmethod
    def transfers(self, done: Iterable[int], failed: Iterable[int]) -> Transferred:
        """Handle ended KV transfers. Called with every result while `waits` is true, to detect timeouts."""

    @abstractmethod
    def connector_metadata(self) -> Any:
        """The KV connector's metadata for its worker half, or None. Called once the step is complete."""

    @abstractmethod
    def reset(self) -> bool:
        """Drop cached contents; True if no block was in use and all were dropped."""

    @property
    @abstractmethod
    def waits(self) -> bool:
        """True during a transfer, so that empty steps must be sent."""

    @property
    @abstractmethod
    def num_free(self) -> int:
        """Number of blocks that can be allocated now."""

    @property
    @abstractmethod
    def num_total(self) -> int:
        """Number of all blocks."""

    @abstractmethod
    def take_counts(self) -> tuple[int, int]:
        """Return (prefix cache queries, hits) in tokens since the last call."""

    def take_external_counts(self) -> tuple[int, int]:
        """As `take_counts`, for KV connector lookups beyond the prefix cache."""
        return 0, 0

    def numbers(self) -> dict[str, float]:
        """Additional numbers for `SchedulerStats.extra`."""
        return {}
