"""The KV cache of the fake worker: records what each slot holds and which request wrote it. Worker process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tenonry.kv_cache import KVCacheConfig
from tenonry.step import BatchState, StepInputs
from tenonry_testkit.fakes.tokens import U64, group_kv

NOBODY = np.iinfo(np.uint64).max
POISON = np.uint64(0xBAD)  # what a row leaves behind whose numbers went wrong
LOST = np.uint64(0x105)  # what a row leaves behind that ran on contents which never came
TRANSFERRED = NOBODY - np.uint64(1)  # the slot was filled by a KV connector


class FakeKVError(AssertionError):
    """A row would have read a slot that does not hold its own prefix, or two rows wrote one slot."""


class Reading:
    """What the rows of one step have read.

    `context` u64[R]: sums modulo 2⁶⁴; `poisoned_by` u64[R]: whose poison (NOBODY's, one hopes); `lost` bool[R]:
    contents that a KV connector failed to bring, or what was computed from such.
    """

    def __init__(self, num_rows: int) -> None:
        self.context = np.zeros(num_rows, np.uint64)
        self.poisoned_by = np.full(num_rows, NOBODY, np.uint64)
        self.lost = np.zeros(num_rows, np.bool_)

    def add(self, values: U64, poisoners: U64, lost: NDArray[np.bool_]) -> None:
        """What one KV group adds; all [R, longest]."""
        self.context += values.sum(axis=1, dtype=np.uint64)
        first = poisoners.min(axis=1)
        self.poisoned_by = np.minimum(self.poisoned_by, first)
        self.lost |= lost.any(axis=1)


class FakeKVStore:
    """One 64-bit number per slot and group; a `BlockStore` for KV connectors.

    content u64[groups, slots]; owner u64[groups, slots] the handle that wrote it; position i32[groups, slots].
    Recurrent groups are kept in a `FakeStateStore` instead.
    """

    def __init__(self, kv_cache: KVCacheConfig) -> None:
        self.block_size = kv_cache.block_size
        self.num_groups = len(kv_cache.groups)
        self.windows = {
            number: group.window if group.kind == "sliding" else 0
            for number, group in enumerate(kv_cache.groups)
            if group.kind != "recurrent"
        }
        shape = (self.num_groups, kv_cache.num_slots)
        self.content = np.zeros(shape, np.uint64)
        self.owner = np.full(shape, NOBODY, np.uint64)
        self.position = np.full(shape, -1, np.int32)
        self.tensors: Mapping[str, Any] = {
            f"group.{group}": self.content[group].reshape(-1, self.block_size)
            for group in range(self.num_groups)
        }

    # ------------------------------------------------------------------ for KV connectors
    def read(self, block_ids: Sequence[int]) -> list[bytes]:
        return [self.content[:, slots].tobytes() for slots in self._slots_of_blocks(block_ids)]

    def write(self, block_ids: Sequence[int], data: Sequence[bytes]) -> None:
        shape = (self.num_groups, self.block_size)
        for slots, part in zip(self._slots_of_blocks(block_ids), data, strict=True):
            values = np.frombuffer(part, np.uint64)
            self.content[:, slots] = values.reshape(shape)
            self.owner[:, slots] = TRANSFERRED

    def _slots_of_blocks(self, block_ids: Sequence[int]) -> list[NDArray[np.int64]]:
        size = self.block_size
        return [np.arange(block * size, (block + 1) * size) for block in block_ids]

    # ------------------------------------------------------------------ for the worker
    def slots(
        self,
        state: BatchState,
        inputs: StepInputs,
        group: int,
    ) -> NDArray[np.int64]:
        """Slot of each position of each scheduled row, [R, longest]; rubbish beyond a row's own length."""
        longest = int(inputs.seq_lens.max())
        position = np.arange(longest)
        size = self.block_size
        tables = state.block_table[group][inputs.row]
        blocks = tables[:, position // size].astype(np.int64)
        return blocks * size + position % size

    def step(
        self,
        state: BatchState,
        inputs: StepInputs,
        kv: U64,
        bad: U64,
    ) -> Reading:
        """Write what the step computes, then check and sum what each row reads.

        `kv` u64[R, longest] is what the positions should hold; a row whose `bad` u64[R] is POISON or LOST writes that
        and reads nothing. Raises FakeKVError that names the row, the position, the slot and what is there instead.
        """
        position = np.arange(kv.shape[1])
        inside = position < inputs.seq_lens[:, None]
        written = inside & (position >= inputs.start[:, None])
        reading = Reading(len(inputs.row))
        for group, window in self.windows.items():
            slots = self.slots(state, inputs, group)
            expected = group_kv(kv, group)
            instead = bad[:, None]
            values = np.where(instead > 0, instead, expected)
            self._write(
                state,
                inputs,
                group,
                slots,
                values,
                written,
            )
            read = inside & (bad == 0)[:, None]
            if window:
                first = inputs.seq_lens - window
                read &= position >= first[:, None]
            at = np.where(read, slots, 0)
            found = self.content[group][at]
            owner = self.owner[group][at]
            differs = found != expected
            poison = read & (found == POISON)
            never_came = (owner == TRANSFERRED) & differs
            lost = read & ((found == LOST) | never_came)
            wrong = read & ~poison & ~lost & differs
            self._check(
                state,
                inputs,
                group,
                slots,
                wrong,
            )
            reading.add(
                np.where(read, found, np.uint64(0)),
                np.where(poison, owner, NOBODY),
                lost,
            )
        return reading

    def _write(
        self,
        state: BatchState,
        inputs: StepInputs,
        group: int,
        slots: NDArray[np.int64],
        values: U64,
        written: NDArray[np.bool_],
    ) -> None:
        which, where = np.nonzero(written)
        target = slots[written]
        if len(np.unique(target)) != len(target):
            ids, counts = np.unique(target, return_counts=True)
            slot = int(ids[counts > 1][0])
            block = slot // self.block_size
            writers = which[target == slot]
            rows = inputs.row[writers].tolist()
            raise FakeKVError(f"rows {rows} write slot {slot} (block {block}) in one step")
        rows_of_slots = inputs.row[which]
        self.content[group, target] = values[written]
        self.owner[group, target] = state.handle[rows_of_slots]
        self.position[group, target] = where

    def _check(
        self,
        state: BatchState,
        inputs: StepInputs,
        group: int,
        slots: NDArray[np.int64],
        wrong: NDArray[np.bool_],
    ) -> None:
        if not wrong.any():
            return
        i, position = (int(axis[0]) for axis in np.nonzero(wrong))
        slot = int(slots[i, position])
        row = int(inputs.row[i])
        owner = self.owner[group, slot]
        held = "nothing"
        if owner != NOBODY:
            held = f"position {self.position[group, slot]} of handle {owner}"
        raise FakeKVError(
            f"row {row} (handle {state.handle[row]}) reads position {position} from slot {slot} (block "
            f"{slot // self.block_size}, group {group}), which does not hold its prefix but {held}"
        )
