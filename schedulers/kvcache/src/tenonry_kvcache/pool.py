"""The pool of KV blocks: used, free, and free but cached blocks. Engine process.

A block is *spare* (free, contents worthless), *evictable* (free, but its contents can be found by digest) or used by
one or more rows. Spare blocks are allocated first, then the evictable one that was freed first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

BlockIds = NDArray[np.intp]


class EvictionQueue:
    """Evictable blocks, in order of their release.

    A block removed from the middle stays in the array and is skipped later, because its `place` no longer points there;
    so every operation is a few numpy calls for any number of blocks.
    """

    def __init__(self, num_blocks: int) -> None:
        self._queue = np.zeros(2 * num_blocks + 1, np.int32)
        self._place = np.full(num_blocks, -1, np.int32)  # index in `_queue`, −1: absent
        self._head = 0
        self._tail = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, blocks: BlockIds) -> None:
        """Append blocks that are not in the queue; the first one goes first."""
        count = len(blocks)
        if self._tail + count > len(self._queue):
            self._compact()
        start = self._tail
        end = start + count
        self._queue[start:end] = blocks
        self._place[blocks] = np.arange(start, end, dtype=np.int32)
        self._tail = end
        self._size += count

    def remove(self, blocks: BlockIds) -> None:
        """Remove blocks from any position in the queue."""
        self._place[blocks] = -1
        self._size -= len(blocks)

    def pop(self, count: int) -> BlockIds:
        """Remove and return the first `count` ≤ len(self) blocks."""
        head = self._head
        ahead = count
        while True:
            stop = min(head + ahead, self._tail)
            blocks: BlockIds = self._queue[head:stop].astype(np.intp)
            places = np.arange(head, stop)
            is_member = self._place[blocks] == places
            members = is_member.nonzero()[0]
            if len(members) >= count:
                break
            ahead *= 2  # removed blocks are among them: search further
        members = members[:count]
        blocks = blocks[members]
        if count:
            self._head += int(members[-1]) + 1
        self.remove(blocks)
        return blocks

    def _compact(self) -> None:
        """Close the gaps; happens once in at least `num_blocks` pushes."""
        head = self._head
        tail = self._tail
        blocks = self._queue[head:tail].astype(np.intp)
        places = np.arange(head, tail)
        is_member = self._place[blocks] == places
        blocks = blocks[is_member]
        count = len(blocks)
        self._queue[:count] = blocks
        self._place[blocks] = np.arange(count, dtype=np.int32)
        self._head = 0
        self._tail = count


class BlockPool:
    """Block ids 0 … num_blocks−1 with reference counts, and the table of cached blocks: digest → block.

    Arguments that hold several blocks hold distinct ones.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._references = np.zeros(num_blocks, np.int32)
        # A stack; the lowest id is on top at first.
        lowest_first = np.arange(num_blocks, dtype=np.intp)
        self._spare = lowest_first[::-1].copy()
        self.num_spare = num_blocks
        self._evictable = EvictionQueue(num_blocks)
        self._block_of: dict[bytes, int] = {}
        self._digest_of: list[bytes | None] = [None] * num_blocks
        self._is_cached = np.zeros(num_blocks, np.bool_)

    @property
    def num_free(self) -> int:
        """Number of unused blocks, spare and evictable."""
        return self.num_spare + len(self._evictable)

    @property
    def num_cached(self) -> int:
        """Number of blocks that can be found by digest, used or not."""
        return len(self._block_of)

    def take(self, count: int) -> BlockIds | None:
        """Allocate `count` blocks for one new user, or return None without enough. Evicts as needed."""
        if count > self.num_free:
            return None
        top = self.num_spare
        from_spare = min(count, top)
        rest = top - from_spare
        blocks = self._spare[rest:top][::-1].copy()
        self.num_spare = rest
        if from_spare < count:
            evicted = self._evictable.pop(count - from_spare)
            self._uncache(evicted)
            if from_spare:
                blocks = np.concatenate([blocks, evicted])
            else:
                blocks = evicted
        self._references[blocks] = 1
        return blocks

    def find(self, digest: bytes) -> int | None:
        """Return the cached block with these contents, or None."""
        return self._block_of.get(digest)

    def share(self, blocks: BlockIds) -> None:
        """Add a user to cached blocks, used or not."""
        references = self._references[blocks]
        unused = blocks[references == 0]
        if len(unused):
            self._evictable.remove(unused)
        self._references[blocks] = references + 1

    def release(self, blocks: BlockIds) -> None:
        """Drop one reference per block. Freed blocks are evicted in reverse order: the end of a sequence first."""
        references = self._references[blocks] - 1
        self._references[blocks] = references
        freed = blocks[references == 0]
        if len(freed) == 0:
            return
        last_first = freed[::-1]
        is_cached = self._is_cached[last_first]
        self._evictable.push(last_first[is_cached])
        self._push_spare(last_first[~is_cached])

    def cache(self, blocks: BlockIds, digests: Sequence[bytes]) -> None:
        """Publish the contents of used blocks; of equal contents, the block cached first is found."""
        block_of = self._block_of
        digest_of = self._digest_of
        pairs = zip(blocks.tolist(), digests, strict=True)
        for block, digest in pairs:
            found = block_of.setdefault(digest, block)
            if found == block:
                digest_of[block] = digest
            else:
                blocks = blocks[blocks != block]
        self._is_cached[blocks] = True

    def forget(self, blocks: BlockIds) -> None:
        """Remove blocks from the cache."""
        cached = self._is_cached[blocks]
        self._uncache(blocks[cached])

    def clear(self) -> bool:
        """Forget all contents. True if no block was in use."""
        self._block_of.clear()
        self._digest_of = [None] * self.num_blocks
        self._is_cached.fill(False)
        evictable = self._evictable.pop(len(self._evictable))
        self._push_spare(evictable)
        return self.num_spare == self.num_blocks

    def _push_spare(self, blocks: BlockIds) -> None:
        start = self.num_spare
        end = start + len(blocks)
        self._spare[start:end] = blocks
        self.num_spare = end

    def _uncache(self, blocks: BlockIds) -> None:
        for block in blocks.tolist():
            digest = self._digest_of[block]
            if digest is not None:
                del self._block_of[digest]
                self._digest_of[block] = None
        self._is_cached[blocks] = False
