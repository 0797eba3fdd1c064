"""The pool of KV blocks: which are in use, which are free, and which of those still hold something. Engine process.

A block is *spare* (free, contents worthless), *evictable* (free, but its contents can be found by digest) or in use by
one row or more. Spare blocks are handed out first, then the evictable one that was freed longest ago.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

BlockIds = NDArray[np.intp]


class EvictionQueue:
    """Evictable blocks, longest free first.

    A block that leaves the middle stays in the array, and is skipped later because its `place` says otherwise; so that
    every operation is a few numpy calls for any number of blocks.
    """

    def __init__(self, num_blocks: int) -> None:
        self._queue = np.zeros(2 * num_blocks + 1, np.int32)
        self._place = np.full(num_blocks, -1, np.int32)  # index in `_queue`, −1: not in it
        self._head = self._tail = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, blocks: BlockIds) -> None:
        """Append blocks that are not in the queue; the first one goes first."""
        count = len(blocks)
        if self._tail + count > len(self._queue):
            self._compact()
        end = self._tail + count
        self._queue[self._tail : end] = blocks
        self._place[blocks] = np.arange(self._tail, end, dtype=np.int32)
        self._tail = end
        self._size += count

    def remove(self, blocks: BlockIds) -> None:
        """Take out blocks that are in the queue, wherever they stand."""
        self._place[blocks] = -1
        self._size -= len(blocks)

    def pop(self, count: int) -> BlockIds:
        """Take the first `count` ≤ len(self) blocks."""
        ahead = count
        while True:
            stop = min(self._head + ahead, self._tail)
            blocks: BlockIds = self._queue[self._head : stop].astype(np.intp)
            valid = (self._place[blocks] == np.arange(self._head, stop)).nonzero()[0]
            if len(valid) >= count:
                break
            ahead *= 2  # leavers stand in between: look further
        valid = valid[:count]
        blocks = blocks[valid]
        self._head += int(valid[-1]) + 1 if count else 0
        self.remove(blocks)
        return blocks

    def _compact(self) -> None:
        """Close the gaps; happens once in at least `num_blocks` pushes."""
        blocks = self._queue[self._head : self._tail].astype(np.intp)
        blocks = blocks[self._place[blocks] == np.arange(self._head, self._tail)]
        self._queue[: len(blocks)] = blocks
        self._place[blocks] = np.arange(len(blocks), dtype=np.int32)
        self._head, self._tail = 0, len(blocks)


class BlockPool:
    """Block ids 0 … num_blocks−1 with reference counts, and the table of what is cached: digest → block.

    Arguments that hold several blocks hold distinct ones.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._references = np.zeros(num_blocks, np.int32)
        self._spare = np.arange(
            num_blocks - 1, -1, -1, dtype=np.intp
        )  # a stack; the lowest id is on top at first
        self._num_spare = num_blocks
        self._evictable = EvictionQueue(num_blocks)
        self._block_of: dict[bytes, int] = {}
        self._digest_of: list[bytes | None] = [None] * num_blocks
        self._is_cached = np.zeros(num_blocks, np.bool_)

    @property
    def num_free(self) -> int:
        """Blocks that nobody uses: spare and evictable ones."""
        return self._num_spare + len(self._evictable)

    @property
    def num_cached(self) -> int:
        """Blocks that can be found by digest, in use or not."""
        return len(self._block_of)

    def take(self, count: int) -> BlockIds | None:
        """`count` blocks for one new user, or None if there are not as many. Evicts as needed."""
        if count > self.num_free:
            return None
        from_spare = min(count, self._num_spare)
        rest = self._num_spare - from_spare
        blocks = self._spare[rest : self._num_spare][::-1].copy()
        self._num_spare = rest
        if from_spare < count:
            evicted = self._evictable.pop(count - from_spare)
            self._uncache(evicted)
            blocks = np.concatenate([blocks, evicted]) if from_spare else evicted
        self._references[blocks] = 1
        return blocks

    def find(self, digest: bytes) -> int | None:
        """The block with these contents, if one is cached."""
        return self._block_of.get(digest)

    def share(self, blocks: BlockIds) -> None:
        """One more user for cached blocks, in use or not."""
        references = self._references[blocks]
        unused = blocks[references == 0]
        if len(unused):
            self._evictable.remove(unused)
        self._references[blocks] = references + 1

    def release(self, blocks: BlockIds) -> None:
        """One user less. What becomes free is evicted in the reverse order: the end of a sequence before its start."""
        references = self._references[blocks] - 1
        self._references[blocks] = references
        freed = blocks[references == 0][::-1]
        if len(freed):
            cached = self._is_cached[freed]
            self._evictable.push(freed[cached])
            self._push_spare(freed[~cached])

    def cache(self, blocks: BlockIds, digests: Sequence[bytes]) -> None:
        """Blocks in use now hold contents that others may find; the first block with a digest stays the one."""
        block_of, digest_of = self._block_of, self._digest_of
        for block, digest in zip(blocks.tolist(), digests, strict=True):
            if block_of.setdefault(digest, block) == block:
                digest_of[block] = digest
            else:
                blocks = blocks[blocks != block]
        self._is_cached[blocks] = True

    def forget(self, blocks: BlockIds) -> None:
        """These blocks are found no more."""
        self._uncache(blocks[self._is_cached[blocks]])

    def clear(self) -> bool:
        """Forget all contents. True if no block was in use."""
        self._block_of.clear()
        self._digest_of = [None] * self.num_blocks
        self._is_cached.fill(False)
        self._push_spare(self._evictable.pop(len(self._evictable)))
        return self._num_spare == self.num_blocks

    def _push_spare(self, blocks: BlockIds) -> None:
        end = self._num_spare + len(blocks)
        self._spare[self._num_spare : end] = blocks
        self._num_spare = end

    def _uncache(self, blocks: BlockIds) -> None:
        for block in blocks.tolist():
            digest = self._digest_of[block]
            if digest is not None:
                del self._block_of[digest]
                self._digest_of[block] = None
        self._is_cached[blocks] = False
