"""Several KV groups over one pool, and sliding ones that release blocks outside their window."""

from __future__ import annotations

import numpy as np
import pytest

from tenonry.errors import ConfigError

SIZE = 4
LONG = list(range(100, 148))


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def held(driver) -> int:
    return driver.blocks.num_total - driver.blocks.num_free


def decode(driver, row: int, count: int) -> None:
    for token in range(count):
        driver.append(row, token)
        assert driver.compute(row, 1)


class TestGivingBack:
    def test_a_long_sequence_holds_what_its_window_reaches(self, make_driver):
        """Of 60 tokens a window of 6 sees at most five tokens more than the one computed: three blocks at any time."""
        driver = make_driver(8, windows=(6,), max_num_batched_tokens=6)
        row, _ = driver.enter(driver.request(LONG[:4]))
        assert driver.compute(row, 4)
        most = 0
        for token in range(55):
            driver.append(row, token)
            assert driver.compute(row, 1)
            most = max(most, held(driver))
        assert most == 3
        assert len(driver.table(row)) == 15  # places keep their ids

    def test_groups_with_full_attention_keep_everything(self, make_driver):
        driver = make_driver(24, windows=(0, 6), max_num_batched_tokens=6)
        row, _ = driver.enter(driver.request(LONG[:4]))
        assert driver.compute(row, 4)
        decode(driver, row, 44)
        assert held(driver) == 12 + 3

    def test_what_the_row_reads_in_this_step_is_kept(self, make_driver):
        """The token at 8 sees 5 to 8 with a window of 4: the block of 4 to 7 stays until it has run."""
        driver = make_driver(6, windows=(4,))
        row, _ = driver.enter(driver.request(LONG))
        assert driver.compute(row, 8)
        assert driver.compute(row, 4)
        first, *others = driver.table(row)
        other, _ = driver.enter(driver.request(LONG[::-1]))
        assert driver.compute(other, 16)
        assert first in driver.table(other)
        assert not set(others) & set(driver.table(other))

    def test_many_rows_give_back_at_once(self, make_driver):
        driver = make_driver(24, windows=(4, 9))
        rows = [driver.enter(driver.request([number] * 40))[0] for number in range(3)]
        index = np.array(rows)
        for end in (8, 12, 16, 20):
            assert driver.blocks.grow(index, i32(end, end, end)) is not None
            driver.rows.num_computed[index] = end
        assert held(driver) == 3 * (2 + 3)
        for row in rows:
            driver.leave(row)
        assert driver.blocks.num_free == 24

    def test_shared_blocks_are_given_back_by_each_row(self, make_driver):
        driver = make_driver(40, windows=(8,))
        driver.run(LONG[:13])
        rows = []
        for tail in (1, 2):
            row, match = driver.enter(driver.request([*LONG[:12], tail, *LONG[20:40]]))
            assert match.num_computed == 12
            rows.append(row)
        index = np.array(rows)
        for end in (16, 20, 24):
            assert driver.blocks.grow(index, i32(end, end)) is not None
            driver.rows.num_computed[index] = end
        for row in rows:
            driver.leave(row)
        assert driver.blocks.num_free == 40

    def test_a_refusal_takes_nothing(self, make_driver):
        driver = make_driver(5, windows=(0, 4))
        row, _ = driver.enter(driver.request(LONG))
        assert driver.compute(row, 8)
        assert not driver.compute(row, 8)
        assert driver.blocks.num_free == 1 + 1  # one that the window has left
        assert [len(ids) for ids in driver.blocks.table(row)] == [2, 2]


class TestStarting:
    def test_a_prompt_reserves_full_blocks_and_a_window(self, make_driver):
        """Of 48 tokens, eight run: twelve full blocks and two of the window are taken, three more must be free."""
        driver = make_driver(17, windows=(0, 6), max_num_batched_tokens=12)
        row, _ = driver.enter(driver.request(LONG))
        assert driver.blocks.reserve(row, 48, 8)
        assert held(driver) == 14
        assert [len(ids) for ids in driver.blocks.table(row)] == [12, 2]

    def test_a_prompt_that_could_not_go_on_does_not_start(self, make_driver):
        driver = make_driver(16, windows=(0, 6), max_num_batched_tokens=12)
        row, _ = driver.enter(driver.request(LONG))
        assert not driver.blocks.reserve(row, 48, 8)
        assert held(driver) == 0


class TestPrefixCache:
    def test_a_hit_needs_the_window_only(self, make_driver):
        """After 24 tokens a window of 6 reads five more: the last two blocks of six."""
        driver = make_driver(64, windows=(6,))
        driver.run(LONG[:25])
        row, match = driver.enter(driver.request(LONG[:25]))
        assert match.num_computed == 24
        assert driver.table(row)[:4] == [0, 0, 0, 0]
        assert held(driver) == 2

    def test_full_groups_need_all(self, make_driver):
        driver = make_driver(64, windows=(0, 6))
        driver.run(LONG[:25])
        row, match = driver.enter(driver.request(LONG[:25]))
        assert match.num_computed == 24
        full, sliding = (ids.tolist() for ids in driver.blocks.table(row))
        assert len(set(full)) == 6
        assert sliding[:4] == [0, 0, 0, 0]
        assert not set(full) & set(sliding[4:])
        assert held(driver) == 8

    def test_a_hole_behind_the_window_does_not_matter_and_one_in_it_does(self, make_driver):
        """Of the blocks 0 to 5, the third is gone: a window of 6 can start after 24, 20, 8 or 4 tokens."""
        driver = make_driver(64, windows=(6,))
        first, _ = driver.enter(driver.request(LONG[:25]))
        assert driver.compute(first, 25)
        driver.blocks.pool.forget(driver.blocks.table(first)[0][2:3].astype(np.intp))
        for length, found in ((25, 24), (21, 20), (17, 8), (13, 8), (9, 8), (5, 4), (4, 0)):
            row, match = driver.enter(driver.request(LONG[:length]))
            assert match.num_computed == found, length
            driver.leave(row)

    def test_what_was_given_back_is_found_until_it_is_needed(self, make_driver):
        driver = make_driver(12, windows=(4,))
        row, _ = driver.enter(driver.request(LONG))
        for _ in range(6):
            assert driver.compute(row, 8)
        second, match = driver.enter(driver.request(LONG[:9]))
        assert match.num_computed == 8
        driver.leave(second)
        third, _ = driver.enter(driver.request([7] * 40))
        assert driver.compute(third, 36)
        _, match = driver.enter(driver.request(LONG[:9]))
        assert match.num_computed == 0

    def test_each_group_finds_its_own_blocks(self, make_driver):
        driver = make_driver(64, windows=(0, 0, 30))
        row, _ = driver.enter(driver.request(LONG[:25]))
        assert driver.compute(row, 25)
        mine = [ids.tolist()[:6] for ids in driver.blocks.table(row)]
        other, _ = driver.enter(driver.request(LONG[:25]))
        assert [ids.tolist() for ids in driver.blocks.table(other)] == mine

    def test_blocks_that_were_given_back_before_they_were_named_are_left_out(self, make_driver):
        """Names may come late, when a step has more blocks than it may hash; by then the block has other contents."""
        driver = make_driver(16, windows=(4,))
        row, _ = driver.enter(driver.request(LONG))
        one = np.array([row])
        for end in (8, 16, 24):
            assert driver.blocks.grow(one, i32(end)) is not None
            driver.rows.num_computed[row] = end
        assert set(driver.table(row)[:3]) & set(driver.table(row)[3:])
        driver.blocks.register(one, i32(24))
        _, match = driver.enter(driver.request(LONG[:9]))
        assert match.num_computed == 0
        _, match = driver.enter(driver.request(LONG[:21]))
        assert match.num_computed == 20

    def test_rows_that_are_named_together_leave_them_out_too(self, make_driver):
        driver = make_driver(32, windows=(2,))
        rows = [driver.enter(driver.request([number] * 20))[0] for number in range(2)]
        index = np.array(rows)
        for end in (4, 8):
            assert driver.blocks.grow(index, i32(end, end)) is not None
            driver.rows.num_computed[index] = end
        driver.rows.num_computed[index] = 12  # as if two steps had run since
        assert driver.blocks.grow(index, i32(16, 16)) is not None
        driver.blocks.register(index, i32(4, 4))
        assert driver.enter(driver.request([0] * 9))[1].num_computed == 0

    def test_a_row_that_failed_takes_what_it_gave_back_along(self, make_driver):
        driver = make_driver(32, windows=(4,))
        row, _ = driver.enter(driver.request(LONG))
        for _ in range(5):
            assert driver.compute(row, 8)
        driver.leave(row, drop=True)
        for length in (9, 17, 25, 33, 41):
            again, match = driver.enter(driver.request(LONG[:length]))
            assert match.num_computed == 0
            driver.leave(again)

    def test_without_caching_nothing_is_found(self, make_driver):
        driver = make_driver(32, windows=(0, 4), enable_prefix_caching=False)
        driver.run(LONG[:25])
        assert driver.enter(driver.request(LONG[:25]))[1].num_computed == 0

    def test_a_reset_forgets_what_was_given_back(self, make_driver):
        driver = make_driver(32, windows=(0, 4))
        driver.run(LONG[:25])
        assert driver.blocks.reset()
        assert driver.run(LONG[:25]) == 0


@pytest.mark.parametrize("windows", [(4,), (0, 4), (0, 0)])
def test_a_connector_is_refused_with_the_way_out(make_driver, windows):
    with pytest.raises(
        ConfigError, match=r"leave out --kv-connector, or .*sliding_window_groups=false"
    ):
        make_driver(windows=windows, connector=object())


def test_windows_and_states_start_from_the_longest_prefix_that_both_have(make_driver):
    """Snapshots every eight tokens; the window has lost the block before the last one."""
    driver = make_driver(32, windows=(6, -1), state_slots=8)
    row, _ = driver.enter(driver.request(LONG[:26]))
    one = np.array([row])
    for end in (8, 16, 24, 26):
        assert driver.blocks.grow(one, i32(end)) is not None
        driver.rows.num_computed[row] = end
        driver.blocks.register(one, i32(end))
        driver.blocks.save_states(one, i32(end))
        driver.blocks.connector_metadata()
    assert driver.enter(driver.request(LONG[:30]))[1].num_computed == 24
    driver.blocks.pool.forget(driver.blocks.table(row)[0][5:6].astype(np.intp))
    assert driver.enter(driver.request(LONG[:30]))[1].num_computed == 16
