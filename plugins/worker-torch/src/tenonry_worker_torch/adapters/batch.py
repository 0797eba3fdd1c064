"""Assignment of a step's tokens to adapters, computed once per step. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from tenonry_torch_base.low_rank import SlotTokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Put = Callable[[str, NDArray[np.generic]], torch.Tensor]

# Limit of padded rows relative to tokens, up to which all adapters are computed with one product.
MOST_FILLING = 3
KERNEL_TOKENS = 128  # more of them are computed by torch, on all cores


class Segment(NamedTuple):
    """Tokens of one slot: the `count` tokens from `begin` on, or those at `index` i64[count]."""

    slot: int
    begin: int
    count: int
    index: torch.Tensor | None


class AdapterBatch:
    """Tokens of one step that use an adapter; `slots` i32[T], on the host, −1 for the others.

    If the adapters have about equally many tokens, `padded` arranges them in rows: [slots, longest] tokens from
    `gather`, results at `back` [tokens with an adapter] go to `rows` (None: to all, in order). Otherwise there are
    `segments`, one per slot. `sorted`: for a kernel, with few tokens.
    """

    def __init__(self, slots: NDArray[np.int32], put: Put, label: str) -> None:
        self.num_tokens = len(slots)
        self.slots = torch.from_numpy(slots)
        tokens = np.flatnonzero(slots >= 0)
        of_tokens = slots[tokens]
        present, counts = np.unique(of_tokens, return_counts=True)
        self.first = int(present[0])
        self.num_slots = int(present[-1]) - self.first + 1
        self.longest = int(counts.max())
        self.segments: list[Segment] = []
        self.sorted: SlotTokens | None = None
        self.is_padded = len(present) > 1 and (
            self.num_slots * self.longest <= MOST_FILLING * len(tokens)
        )
        order = np.argsort(of_tokens, kind="stable")
        sorted_tokens = tokens[order]
        if len(tokens) <= KERNEL_TOKENS:
            ends = np.cumsum(np.bincount(of_tokens))
            self.sorted = SlotTokens(torch.from_numpy(sorted_tokens), torch.from_numpy(ends))
        starts = np.cumsum(counts) - counts
        if self.is_padded:
            self._pad(of_tokens, sorted_tokens, order, counts, starts, present)
            self.gather = put(f"{label}_gather", self._gather)
            self.back = put(f"{label}_back", self._back)
            is_all = len(tokens) == len(slots)
            self.rows = None if is_all else put(f"{label}_rows", tokens)
            return
        for slot, start, count in zip(present.tolist(), starts, counts.tolist(), strict=True):
            index = sorted_tokens[start : start + count]
            begin = int(index[0])
            is_run = int(index[-1]) - begin + 1 == count
            on_device = None if is_run else put(f"{label}_{slot}", index)
            self.segments.append(Segment(slot, begin, count, on_device))

    def _pad(
        self,
        of_tokens: NDArray[np.int32],
        sorted_tokens: NDArray[np.int64],
        order: NDArray[np.int64],
        counts: NDArray[np.int64],
        starts: NDArray[np.int64],
        present: NDArray[np.int32],
    ) -> None:
        """Fill places without a token with the first one; their results are not read."""
        within = np.arange(len(order)) - np.repeat(starts, counts)
        shift = (np.repeat(present, counts) - self.first).astype(np.int64) * self.longest
        places = shift + within
        self._gather = np.zeros(self.num_slots * self.longest, np.int64)
        self._gather[places] = sorted_tokens
        self._back = np.empty(len(of_tokens), np.int64)
        self._back[order] = places


class StepAdapters:
    """Adapter batches of the running step: of all tokens, and of those that continue in a pruned layer. `decoding`:
    adapter numbers of the rows, if the next step may reuse the batch.
    """

    __slots__ = ("decoding", "full", "kept", "num_kept")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Clear the batch for a step without adapters."""
        self.full: AdapterBatch | None = None
        self.kept: AdapterBatch | None = None
        self.num_kept = -1
        self.decoding: NDArray[np.int32] | None = None

    def goes_on(self, numbers: NDArray[np.int32]) -> bool:
        """Return True if rows with these adapters decode, as in the previous step."""
        return self.decoding is not None and np.array_equal(self.decoding, numbers)

    def of(self, num_tokens: int) -> AdapterBatch | None:
        """Batch for a layer with `num_tokens` inputs: fewer than the step's in a pruned layer."""
        return self.kept if num_tokens == self.num_kept else self.full
