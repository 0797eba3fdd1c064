"""The block pool and its eviction queue against plain lists."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tenonry_kvcache.pool import BlockPool, EvictionQueue

NUM_BLOCKS = 7


def ids(*blocks: int) -> np.ndarray:
    return np.array(blocks, np.intp)


class EvictionMachine(RuleBasedStateMachine):
    """A list in which blocks are appended, taken from the front, and removed anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = EvictionQueue(NUM_BLOCKS)
        self.model: list[int] = []

    @rule(blocks=st.permutations(range(NUM_BLOCKS)), count=st.integers(0, NUM_BLOCKS))
    def push(self, blocks, count):
        new = [block for block in blocks if block not in self.model][:count]
        self.queue.push(ids(*new))
        self.model += new

    @rule(blocks=st.permutations(range(NUM_BLOCKS)), count=st.integers(0, NUM_BLOCKS))
    def remove(self, blocks, count):
        leavers = [block for block in blocks if block in self.model][:count]
        self.queue.remove(ids(*leavers))
        self.model = [block for block in self.model if block not in leavers]

    @rule(count=st.integers(0, NUM_BLOCKS))
    def pop(self, count):
        count = min(count, len(self.model))
        assert self.queue.pop(count).tolist() == self.model[:count]
        self.model = self.model[count:]

    @invariant()
    def size_is_right(self):
        assert len(self.queue) == len(self.model)


TestEviction = EvictionMachine.TestCase
TestEviction.settings = settings(stateful_step_count=60, deadline=None)


class PoolMachine(RuleBasedStateMachine):
    """Users hold blocks, some of them together; free blocks are spare or evictable, oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.users: list[list[int]] = []
        self.evictable: list[int] = []
        self.digest_of: dict[int, bytes] = {}
        self.count = 0

    @property
    def used(self) -> list[int]:
        return [block for blocks in self.users for block in blocks]

    @property
    def num_spare(self) -> int:
        return NUM_BLOCKS - len(set(self.used)) - len(self.evictable)

    @rule(count=st.integers(1, NUM_BLOCKS))
    def takes(self, count):
        num_spare, free = self.num_spare, NUM_BLOCKS - len(set(self.used))
        taken = self.pool.take(count)
        assert (taken is None) == (count > free)
        if taken is None:
            return
        blocks = taken.tolist()
        assert len(set(blocks)) == count
        assert not set(blocks) & set(self.used)
        evicted = max(0, count - num_spare)
        assert blocks[count - evicted :] == self.evictable[:evicted]
        assert not set(blocks[: count - evicted]) & set(self.evictable)
        for block in self.evictable[:evicted]:
            del self.digest_of[block]
        self.evictable = self.evictable[evicted:]
        self.users.append(blocks)

    @rule(which=st.integers(0, 99), known=st.booleans(), part=st.integers(0, NUM_BLOCKS))
    @precondition(lambda self: self.users)
    def caches(self, which, known, part):
        """`known`: contents that another block may hold already."""
        blocks = [
            block for block in self.users[which % len(self.users)] if block not in self.digest_of
        ][:part]
        digests = []
        for block in blocks:
            self.count += 1
            digest = b"same" if known and not digests else b"%d" % self.count
            digests.append(digest)
            if digest not in self.digest_of.values():
                self.digest_of[block] = digest
        self.pool.cache(ids(*blocks), digests)

    @rule(digests=st.permutations(range(NUM_BLOCKS)), count=st.integers(0, NUM_BLOCKS))
    def shares(self, digests, count):
        found = [
            self.pool.find(self.digest_of[block]) for block in digests if block in self.digest_of
        ][:count]
        assert all(block is not None and block in self.digest_of for block in found)
        self.pool.share(ids(*found))
        self.evictable = [block for block in self.evictable if block not in found]
        self.users.append(found)

    @rule(which=st.integers(0, 99))
    @precondition(lambda self: self.users)
    def releases(self, which):
        blocks = self.users.pop(which % len(self.users))
        self.pool.release(ids(*blocks))
        left = set(self.used)
        self.evictable += [
            block for block in reversed(blocks) if block not in left and block in self.digest_of
        ]

    @rule(which=st.integers(0, 99))
    @precondition(lambda self: self.users)
    def forgets(self, which):
        blocks = self.users[which % len(self.users)]
        self.pool.forget(ids(*blocks))
        for block in blocks:
            self.digest_of.pop(block, None)

    @rule()
    def clears(self):
        assert self.pool.clear() == (not self.used)
        self.evictable, self.digest_of = [], {}

    @invariant()
    def nothing_is_lost(self):
        assert self.pool.num_free == NUM_BLOCKS - len(set(self.used))
        assert self.pool.num_cached == len(self.digest_of)
        for block, digest in self.digest_of.items():
            assert self.pool.find(digest) == block
        for block in range(NUM_BLOCKS):
            assert self.pool._references[block] == self.used.count(block)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(stateful_step_count=50, deadline=None)


def test_a_new_pool_hands_out_neighbours_from_the_start():
    pool = BlockPool(10)
    assert pool.take(4).tolist() == [0, 1, 2, 3]
    assert pool.take(2).tolist() == [4, 5]


def test_what_was_freed_last_is_used_first_if_it_holds_nothing():
    pool = BlockPool(4)
    blocks = pool.take(3)
    pool.release(blocks)
    assert sorted(pool.take(3).tolist()) == [0, 1, 2]


def test_the_end_of_a_sequence_is_evicted_before_its_start():
    pool = BlockPool(4)
    blocks = pool.take(4)
    pool.cache(blocks, [b"a", b"b", b"c", b"d"])
    pool.release(blocks)
    assert pool.take(1).tolist() == [3]
    assert [pool.find(digest) for digest in (b"a", b"b", b"c", b"d")] == [0, 1, 2, None]


def test_a_hit_makes_a_block_young_again():
    pool = BlockPool(3)
    for name in (b"a", b"b", b"c"):
        block = pool.take(1)
        pool.cache(block, [name])
        pool.release(block)
    hit = ids(pool.find(b"a"))
    pool.share(hit)
    pool.release(hit)
    assert [pool.take(1).tolist() for _ in range(3)] == [[1], [2], [0]]


def test_digests_and_blocks_come_in_pairs():
    pool = BlockPool(2)
    with pytest.raises(ValueError, match="zip"):
        pool.cache(pool.take(2), [b"only one"])
