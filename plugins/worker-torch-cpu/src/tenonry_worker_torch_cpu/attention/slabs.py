"""Contiguous copies of the K/V of decoding rows, and the slots of rows. Worker process, CPU.

A *slab* holds rows of similar length, padded to one capacity, dense per layer. A row enters a slab by a copy of its
blocks and then only gains one token per step, so decoding reads K/V in place and copies nothing. The blocks stay
complete: a row can be dropped from a slab at any time, and is copied again when it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tenonry_torch_base.attention.storage import zeros

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOWHERE = -1
CPU = torch.device("cpu")


def capacities(longest: int) -> NDArray[np.int64]:
    """Slab capacities in tokens: 64, 96, 128, 192, 256, … up to at least `longest`; a fifth is wasted on average."""
    sizes = [64]
    while sizes[-1] < longest:
        power = sizes[-1]
        sizes += [power * 3 // 2, power * 2]
    return np.array(sizes, np.int64)


class Slab:
    """Rows of one capacity: `tensors[layer]` [2, slots, num_kv_heads, capacity, size] and the owner of each slot."""

    __slots__ = ("capacity", "owner", "tensors")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.owner: NDArray[np.int64] = np.empty(0, np.int64)
        self.tensors: list[torch.Tensor] = []


class Placement:
    """The slots of `rows` of one step: all in `slab`, row i in `slots[i]`; `entering` ones need their blocks copied.

    A slot begins with the token at `base[i]` of its row.
    """

    __slots__ = ("base", "entering", "rows", "slab", "slots")

    def __init__(
        self,
        slab: Slab,
        rows: NDArray[np.int64],
        slots: NDArray[np.int64],
        entering: NDArray[np.bool_],
    ) -> None:
        self.base: NDArray[np.int64] = np.zeros_like(rows)
        self.slab = slab
        self.rows = rows
        self.slots = slots
        self.entering = entering


class Slabs:
    """The slabs of a backend. Columns by row: slab number, slot, generation, `length` of the row in tokens, and the
    position of the first one that is held (`base`).
    """

    def __init__(
        self, num_layers: int, num_kv_heads: int, size: int, dtype: torch.dtype, budget_bytes: int
    ) -> None:
        self.num_layers = num_layers
        self.num_kv_heads = num_kv_heads
        self.size = size
        self.dtype = dtype
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self._capacities = capacities(64)
        self._slabs: dict[int, Slab] = {}
        self._slab = np.empty(0, np.int64)
        self._slot = self._generation = self._length = self._base = self._slab

    def place(
        self,
        rows: NDArray[np.int64],
        generation: NDArray[np.int64],
        lengths: NDArray[np.int64],
        first: NDArray[np.int64] | None = None,
    ) -> tuple[list[tuple[NDArray[np.int64], Placement]], NDArray[np.int64]]:
        """Find or make room for rows that attend to `lengths` tokens, the one of this step included.

        `first`: positions before which rows see nothing any more. A row that enters is held from there on, with room
        for half as much again; when that is used up, it enters anew.

        Returns (indices into `rows`, placement) per slab, and the indices of rows for which the budget has no room.
        """
        self._make_columns(int(rows.max()) + 1)
        longest = 2 * int(lengths.max()) if first is not None else int(lengths.max())
        if longest > self._capacities[-1]:
            self._capacities = capacities(longest)
        is_same = self._generation[rows] == generation
        goes_on = is_same & (self._length[rows] == lengths - 1)
        if first is None:
            wanted = np.searchsorted(self._capacities, lengths)
            resident = (self._slab[rows] == wanted) & goes_on
        else:
            wanted, resident = self._wanted_behind(rows, lengths, first, goes_on)
        self.release(rows[~resident])
        placed = []
        unplaced = [np.empty(0, np.int64)]
        for number in np.unique(wanted):
            which = np.flatnonzero(wanted == number)
            placement = self._place_in(int(number), rows[which], resident[which])
            if placement is None:
                unplaced.append(which)
                continue
            entered = rows[which]
            self._slab[entered] = number
            self._slot[entered] = placement.slots
            self._generation[entered] = generation[which]
            self._length[entered] = lengths[which]
            if first is not None:
                # Copies begin at the first visible position, also for rows that only change their slot.
                placement.base = np.where(placement.entering, first[which], self._base[entered])
                self._base[entered] = placement.base
            placed.append((which, placement))
        return placed, np.concatenate(unplaced)

    def _wanted_behind(
        self,
        rows: NDArray[np.int64],
        lengths: NDArray[np.int64],
        first: NDArray[np.int64],
        goes_on: NDArray[np.bool_],
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the slab of each row with an empty window before `first`, and True for rows already in it."""
        room = self._base[rows] + self._capacities[self._slab[rows]]
        is_in_slab = (self._slab[rows] != NOWHERE) & (lengths <= room)
        resident = is_in_slab & goes_on
        entering = lengths - first
        entering += np.where(first > 0, entering // 2, 0)
        wanted = np.searchsorted(self._capacities, entering)
        return np.where(resident, self._slab[rows], wanted), resident

    def advance(self, rows: NDArray[np.int64]) -> None:
        """Each of the rows gained one token in its slot."""
        self._length[rows] += 1

    def release(self, rows: NDArray[np.int64]) -> None:
        """Forget rows; their slots are free. Rows without a slot are ignored."""
        rows = rows[rows < len(self._slab)]
        for number in np.unique(self._slab[rows]):
            if number != NOWHERE:
                leaving = rows[self._slab[rows] == number]
                slab = self._slabs[int(number)]
                slab.owner[self._slot[leaving]] = NOWHERE
        self._slab[rows] = NOWHERE

    def _place_in(
        self, number: int, rows: NDArray[np.int64], resident: NDArray[np.bool_]
    ) -> Placement | None:
        """Return slots for `rows` in slab `number`. Repacks it when mostly unused, grows it when full."""
        empty = Slab(int(self._capacities[number]))
        slab = self._slabs.setdefault(number, empty)
        taken = self._slot[rows[resident]]
        reach = int(taken.max()) + 1 if len(taken) else 0
        if len(rows) > len(slab.owner):
            if not self._grow(slab, len(rows)):
                return None
            resident = np.zeros_like(resident)
        elif reach > 2 * len(rows):
            self._evict(slab, slab.owner[slab.owner != NOWHERE])
            resident = np.zeros_like(resident)
        slots = np.where(resident, self._slot[rows], NOWHERE)
        missing = np.flatnonzero(~resident)
        if len(missing):
            free = np.ones(len(slab.owner), np.bool_)
            free[slots[resident]] = False
            is_owned = slab.owner != NOWHERE
            unowned = np.flatnonzero(free & ~is_owned)
            owned = np.flatnonzero(free & is_owned)
            found = np.concatenate([unowned, owned])[: len(missing)]
            self._evict(slab, slab.owner[found[len(unowned) :]])
            slots[missing] = found
            slab.owner[found] = rows[missing]
        return Placement(slab, rows, slots, ~resident)

    def _evict(self, slab: Slab, rows: NDArray[np.int64]) -> None:
        slab.owner[self._slot[rows]] = NOWHERE
        self._slab[rows] = NOWHERE

    def _grow(self, slab: Slab, num_slots: int) -> bool:
        """More slots, if the budget has room; all rows of the slab must enter again."""
        for wanted in (1 << (num_slots - 1).bit_length(), num_slots):
            held = self._bytes(slab.capacity, len(slab.owner))
            more = self._bytes(slab.capacity, wanted) - held
            if self.used_bytes + more > self.budget_bytes:
                self._drop_empty(slab)
            if self.used_bytes + more <= self.budget_bytes:
                self._evict(slab, slab.owner[slab.owner != NOWHERE])
                self._empty(slab)  # before larger tensors are allocated
                shape = (2, wanted, self.num_kv_heads, slab.capacity, self.size)
                slab.tensors = [zeros(shape, self.dtype, CPU) for _ in range(self.num_layers)]
                slab.owner = np.full(wanted, NOWHERE, np.int64)
                self.used_bytes += self._bytes(slab.capacity, wanted)
                return True
        return False

    def _drop_empty(self, keep: Slab) -> None:
        for slab in self._slabs.values():
            if slab is keep or not len(slab.owner):
                continue
            if (slab.owner == NOWHERE).all():
                self._empty(slab)

    def _empty(self, slab: Slab) -> None:
        """Free its tensors."""
        self.used_bytes -= self._bytes(slab.capacity, len(slab.owner))
        slab.tensors = []
        slab.owner = np.empty(0, np.int64)

    def _bytes(self, capacity: int, num_slots: int) -> int:
        """K and V of all layers."""
        elements = 2 * num_slots * self.num_kv_heads * capacity * self.size
        return elements * self.dtype.itemsize * self.num_layers

    def _make_columns(self, count: int) -> None:
        more = count - len(self._slab)
        if more <= 0:
            return
        nowhere = np.full(more, NOWHERE, np.int64)
        zero = np.zeros(more, np.int64)
        self._slab = np.concatenate([self._slab, nowhere])
        self._slot = np.concatenate([self._slot, zero])
        self._generation = np.concatenate([self._generation, zero])
        self._length = np.concatenate([self._length, zero])
        self._base = np.concatenate([self._base, zero])
