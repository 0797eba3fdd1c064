"""Blocks by row and the prefix cache: against a naive oracle, and case by case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tenonry.errors import ConfigError
from tenonry.step import Adapter

SIZE = 4
LONG = list(range(20))


class CacheMachine(RuleBasedStateMachine):
    """Rows come, grow and go. A model records the last writer of each block, and every hit must hold its prefix.

    While nothing was evicted, forgotten or reset, hits are exactly the longest prefix of full blocks ever computed.
    """

    make: Callable[..., Any]

    def __init__(self) -> None:
        super().__init__()
        self.contents: dict[int, tuple] = {}  # block → (salt, all tokens up to its end)
        self.computed: set[tuple] = set()  # prefixes of full blocks that were computed
        self.complete = True  # nothing that was computed can have been lost
        self.salts: dict[int, str | None] = {}

    @initialize(num_blocks=st.sampled_from((16, 20, 200)))
    def start(self, num_blocks):
        self.driver = self.make(num_blocks, rows=4)

    @property
    def active(self) -> list[int]:
        return [row for row in range(4) if self.driver.rows.requests[row] is not None]

    def tokens(self, row: int, end: int) -> tuple:
        return (self.salts[row], *self.driver.rows.token_ids[row, :end].tolist())

    def write(self, row: int, start: int) -> None:
        """The row computed from `start` on: its blocks now hold its tokens."""
        end, table = int(self.driver.rows.num_computed[row]), self.driver.table(row)
        for number in range(start // SIZE, -(-end // SIZE)):
            stop = min((number + 1) * SIZE, end)
            self.contents[table[number]] = self.tokens(row, stop)
            if stop == (number + 1) * SIZE:
                self.computed.add(self.tokens(row, stop))

    @rule(
        family=st.integers(0, 1),
        length=st.integers(1, 24),
        tail=st.integers(0, 2),
        salt=st.sampled_from((None, "s")),
    )
    @precondition(lambda self: len(self.active) < 4)
    def enters(self, family, length, tail, salt):
        tokens = [family * 100 + i for i in range(length)]
        tokens[-1] += tail
        request = self.driver.request(tokens, cache_salt=salt)
        row, match = self.driver.enter(request)
        self.salts[row] = salt
        hit = match.num_computed
        assert hit % SIZE == 0
        assert hit < length
        for number, block in enumerate(self.driver.table(row)[: hit // SIZE]):
            assert self.contents[block] == (salt, *tokens[: (number + 1) * SIZE])
        longest = 0
        while longest + SIZE < length and (salt, *tokens[: longest + SIZE]) in self.computed:
            longest += SIZE
        assert hit == longest if self.complete else hit <= longest

    @rule(which=st.integers(0, 3), count=st.integers(1, 9))
    @precondition(lambda self: self.active)
    def computes(self, which, count):
        row = self.active[which % len(self.active)]
        rows = self.driver.rows
        start = int(rows.num_computed[row])
        count = min(count, int(rows.num_tokens[row]) - start)
        if count == 0:
            self.driver.append(row, 7)
            count = 1
        free, cached = self.driver.blocks.num_free, self.driver.blocks.pool.num_cached
        used = -(-(start + count) // SIZE) - len(self.driver.table(row))
        if start + count >= 60:
            return
        grew = self.driver.compute(row, count)
        assert grew == (used <= free)
        if grew:
            self.complete &= (
                self.driver.blocks.pool.num_cached >= cached
                and self.driver.blocks.pool.num_spare > 0
            )
            self.write(row, start)

    @rule(which=st.integers(0, 3), drop=st.booleans(), finished=st.booleans())
    @precondition(lambda self: self.active)
    def leaves(self, which, drop, finished):
        self.driver.leave(self.active[which % len(self.active)], finished=finished, drop=drop)
        self.complete &= not drop

    @rule()
    def is_reset(self):
        assert self.driver.blocks.reset() == (
            not self.active or all(not self.driver.table(row) for row in self.active)
        )
        self.computed, self.complete = set(), False

    @invariant()
    def no_row_writes_where_another_reads(self):
        if not hasattr(self, "driver"):
            return
        held = [(block, row) for row in self.active for block in self.driver.table(row)]
        used = {block for block, _ in held}
        assert self.driver.blocks.num_free == self.driver.blocks.num_total - len(used)
        for row in self.active:
            table = self.driver.table(row)
            writes = table[int(self.driver.rows.num_computed[row]) // SIZE :]
            others = {block for block, other in held if other != row}
            assert not set(writes) & others
            assert len(set(table)) == len(table)


@pytest.mark.slow
def test_hits_are_those_of_a_naive_oracle(make_driver):
    class Machine(CacheMachine):
        make = make_driver

    run_state_machine_as_test(
        Machine, settings=settings(stateful_step_count=40, deadline=None, database=None)
    )


class TestMatching:
    def test_never_the_last_token(self, make_driver):
        driver = make_driver()
        assert [driver.run(LONG[:8]) for _ in range(2)] == [0, 4]
        assert driver.run(LONG[:9]) == 8
        assert driver.run(LONG) == 8

    def test_rows_of_one_step_share(self, make_driver):
        driver = make_driver()
        first, _ = driver.enter(driver.request(LONG))
        driver.compute(first, 20)
        second, match = driver.enter(driver.request(LONG))
        assert match == (16, True)
        assert driver.table(second) == driver.table(first)[:4]

    def test_in_parts_as_far_as_they_are_computed(self, make_driver):
        driver = make_driver()
        first, _ = driver.enter(driver.request(LONG))
        found = []
        for _ in range(5):
            driver.compute(first, 4)
            second, match = driver.enter(driver.request(LONG))
            found.append(match.num_computed)
            driver.leave(second)
        assert found == [4, 8, 12, 16, 16]

    def test_another_salt_adapter_or_feature_finds_nothing(self, make_driver):
        driver = make_driver()
        driver.run(LONG)
        for fields in (
            {"cache_salt": "a"},
            {"cache_salt": "b"},
            {"adapter": Adapter("a", "1")},
            {"adapter": Adapter("a", "2")},
            {"features": {"x": np.ones(1)}},
        ):
            assert driver.run(LONG, **fields) == 0
            assert driver.run(LONG, **fields) == 16

    def test_prompt_logprobs_find_nothing_but_leave_something(self, make_driver):
        driver = make_driver()
        assert [driver.run(LONG, prompt_logprobs=1) for _ in range(2)] == [0, 0]
        assert driver.run(LONG) == 16

    def test_off(self, make_driver):
        for driver in (
            make_driver(enable_prefix_caching=False),
            make_driver(groups=("full", "recurrent")),
            make_driver(groups=("opaque",)),
        ):
            assert [driver.run(LONG) for _ in range(2)] == [0, 0]
            assert driver.blocks.take_counts() == (0, 0)

    def test_output_tokens_are_found_too(self, make_driver):
        driver = make_driver()
        row, _ = driver.enter(driver.request(LONG[:6]))
        driver.compute(row, 6)
        for token in (50, 51, 52):
            driver.append(row, token)
            driver.compute(row, 1)
        driver.leave(row)
        assert driver.run([*LONG[:6], 50, 51, 99]) == 8

    def test_a_request_that_comes_back_finds_itself(self, make_driver):
        driver = make_driver()
        request = driver.request(LONG[:6])
        row, _ = driver.enter(request)
        driver.compute(row, 6)
        for token in (50, 51, 52):
            driver.append(row, token)
            driver.compute(row, 1)
        driver.append(row, 53)
        driver.leave(row, finished=False)
        _, match = driver.enter(request)
        assert match.num_computed == 8

    def test_digests_are_made_once_per_request(self, make_driver, monkeypatch):
        driver = make_driver()
        made = []
        extend = driver.blocks.prefix.hasher.extend
        monkeypatch.setattr(
            driver.blocks.prefix.hasher,
            "extend",
            lambda chain, data, first, stop: made.append(stop) or extend(chain, data, first, stop),
        )
        driver.run(LONG)
        made.clear()
        request = driver.request(LONG)
        for _ in range(3):  # it does not fit, again and again
            row, _ = driver.enter(request)
            driver.blocks.free(request, row, num_known=0)
            driver.rows.leave(row)
        assert made == [1, 2, 3, 4]

    def test_counts_are_tokens_and_forget_starts_that_were_undone(self, make_driver):
        driver = make_driver()
        driver.run(LONG)
        driver.run(LONG)
        assert driver.blocks.take_counts() == (40, 16)
        request = driver.request(LONG)
        row, _ = driver.enter(request)
        driver.blocks.free(request, row, num_known=0)
        assert driver.blocks.take_counts() == (0, 0)


class TestGrowing:
    def test_only_rows_that_need_a_block_get_one(self, make_driver):
        driver = make_driver()
        rows = np.array([driver.enter(driver.request([i] * 3))[0] for i in range(3)])
        driver.blocks.grow(rows, np.array([3, 4, 3], np.int32))
        assert len(driver.blocks.grow(rows, np.array([4, 4, 4], np.int32)).row) == 0
        added = driver.blocks.grow(rows, np.array([5, 4, 13], np.int32))
        assert added.row.tolist() == [rows[0], rows[2], rows[2], rows[2]]
        assert [len(driver.table(row)) for row in rows.tolist()] == [2, 1, 4]
        assert [driver.table(rows[2])[-3:], driver.table(rows[0])[-1:]] == [
            added.block_id[1:].tolist(),
            added.block_id[:1].tolist(),
        ]
        assert all(column.dtype == np.int32 for column in added)

    def test_all_or_none(self, make_driver):
        driver = make_driver(4)
        rows = np.array([driver.enter(driver.request([i] * 3))[0] for i in range(2)])
        assert driver.blocks.grow(rows, np.array([12, 8], np.int32)) is None
        assert driver.blocks.num_free == 4
        assert [driver.table(row) for row in rows.tolist()] == [[], []]
        assert driver.blocks.grow(rows, np.array([8, 8], np.int32)) is not None
        assert driver.blocks.num_free == 0

    def test_every_group_gets_blocks(self, make_driver):
        driver = make_driver(groups=("full", "sliding"))
        row, _ = driver.enter(driver.request(LONG))
        added = driver.blocks.grow(np.array([row]), np.array([7], np.int32))
        assert added.group.tolist() == [0, 0, 1, 1]
        assert added.row.tolist() == [row] * 4
        tables = driver.blocks.table(row)
        assert [table.tolist() for table in tables] == [
            added.block_id[:2].tolist(),
            added.block_id[2:].tolist(),
        ]

    def test_a_recurrent_group_gets_none(self, make_driver):
        driver = make_driver(groups=("full", "recurrent", "full"))
        row, _ = driver.enter(driver.request(LONG))
        added = driver.blocks.grow(np.array([row]), np.array([7], np.int32))
        assert added.group.tolist() == [0, 0, 2, 2]
        first, last = added.block_id[:2].tolist(), added.block_id[2:].tolist()
        assert [ids.tolist() for ids in driver.blocks.table(row)] == [first, [], last]
        assert not set(first) & set(last)

    def test_a_model_of_states_alone_is_counted_in_blocks_that_are_not_sent(self, make_driver):
        driver = make_driver(4, groups=("recurrent",))
        row, _ = driver.enter(driver.request(LONG))
        added = driver.blocks.grow(np.array([row]), np.array([7], np.int32))
        assert len(added.row) == 0
        assert driver.blocks.num_free == 2
        assert [ids.tolist() for ids in driver.blocks.table(row)] == [[]]

    @pytest.mark.parametrize("kind", ["recurrent", "opaque"])
    def test_a_connector_cannot_move_what_is_not_in_blocks(self, make_driver, kind):
        with pytest.raises(ConfigError, match=rf"\['{kind}'\] .* leave out --kv-connector"):
            make_driver(groups=("full", kind), connector=object())


class TestRegistering:
    def test_rows_in_step_with_each_other_are_spread(self, make_driver):
        """All rows fill a block in one step: the work of that step is bounded, and done within the next ones."""
        driver = make_driver(400, rows=100, max_num_batched_tokens=100)
        rows = np.array([driver.enter(driver.request([i, i, i, i]))[0] for i in range(100)])
        driver.blocks.grow(rows, np.full(100, 4, np.int32))
        sizes = [0]
        while sizes[-1] < 100:
            driver.blocks.register(rows, np.full(100, 4, np.int32))
            sizes.append(driver.blocks.pool.num_cached)
        assert np.diff(sizes).max() <= 16 + 3 * 100 // SIZE
        assert len(sizes) <= SIZE

    def test_what_was_put_off_is_done_when_the_row_leaves(self, make_driver):
        driver = make_driver(400, rows=100, max_num_batched_tokens=100)
        rows = np.array([driver.enter(driver.request([i, i, i, i, i]))[0] for i in range(100)])
        driver.blocks.grow(rows, np.full(100, 4, np.int32))
        driver.blocks.register(rows, np.full(100, 4, np.int32))
        driver.rows.num_computed[rows] = 4
        for row in rows.tolist():
            driver.leave(row)
        assert driver.blocks.pool.num_cached == 100

    def test_equal_contents_are_cached_once(self, make_driver):
        driver = make_driver()
        rows = [driver.enter(driver.request(LONG))[0] for _ in range(2)]
        for row in rows:
            driver.compute(row, 20)
        assert driver.blocks.pool.num_cached == 5
        for row in reversed(rows):
            driver.leave(row)
        assert driver.blocks.num_free == driver.blocks.num_total
        assert driver.run(LONG) == 16

    def test_many_rows_with_blocks_of_any_number(self, make_driver):
        driver = make_driver()
        rows = np.array(
            [driver.enter(driver.request([i + j for j in range(16)]))[0] for i in (0, 50)]
        )
        driver.blocks.grow(rows, np.array([16, 4], np.int32))
        driver.blocks.register(rows, np.array([16, 4], np.int32))
        assert driver.blocks.pool.num_cached == 5


class TestLeaving:
    def test_a_failed_row_takes_all_its_blocks_out_of_the_cache(self, make_driver):
        """Blocks that it found in the cache are included: they may be the cause of the failure."""
        driver = make_driver()
        driver.run(LONG[:9])
        bad, match = driver.enter(driver.request(LONG))
        assert match.num_computed == 8
        driver.compute(bad, 12)
        reader, match = driver.enter(driver.request(LONG))
        assert match.num_computed == 16
        driver.leave(bad, drop=True)
        assert driver.run(LONG) == 0
        driver.leave(reader, drop=True)
        assert driver.blocks.num_free == driver.blocks.num_total

    def test_the_pool_is_evicted_from_the_ends(self, make_driver):
        driver = make_driver(8)
        driver.run(LONG)
        driver.run([90 + i for i in range(24)])  # three spare blocks and three evicted ones
        assert driver.run(LONG) == 8

    def test_reset_forgets_what_rows_in_use_hold(self, make_driver):
        driver = make_driver()
        row, _ = driver.enter(driver.request(LONG))
        driver.compute(row, 9)
        assert not driver.blocks.reset()
        driver.compute(row, 11)
        assert driver.run(LONG[:9]) == 0
        assert driver.run(LONG) == 8  # what the row in use computed was built on what is forgotten
        driver.leave(row)
        assert driver.blocks.reset()
        assert driver.blocks.num_free == driver.blocks.num_total

    def test_a_request_that_comes_back_after_a_reset_finds_nothing_of_before(self, make_driver):
        driver = make_driver()
        request = driver.request(LONG)
        row, _ = driver.enter(request)
        driver.compute(row, 20)
        driver.append(row, 5)
        driver.leave(row, finished=False)
        driver.blocks.reset()
        _, match = driver.enter(request)
        assert match.num_computed == 0

    def test_nothing_is_remembered_of_the_ended(self, make_driver):
        driver = make_driver()
        for _ in range(3):
            driver.run(LONG)
        assert driver.blocks.prefix.chain_of_handle == {}
