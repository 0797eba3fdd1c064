"""Snapshots of recurrent states: ends of chunks, filled slots, and start states of rows (KV-2)."""

from __future__ import annotations

import numpy as np
import pytest

from tenonry_kvcache import KVCacheManager
from tenonry_scheduling import Match

SIZE = 4
LONG = list(range(30))  # 28 of its tokens are in full blocks before the last token
Saved = list[tuple[int, int, int]]  # row, group, slot


class StateDriver:
    """A manager over a full and a recurrent group; steps are built and ended here."""

    def __init__(self, make_driver, slots=8, groups=("full", "recurrent"), **options):
        self.driver = make_driver(64, groups=groups, state_slots=slots, **options)
        self.blocks: KVCacheManager = self.driver.blocks
        self.rows = self.driver.rows

    def enter(self, tokens, **fields) -> tuple[int, Match | None]:
        return self.driver.enter(self.driver.request(tokens, **fields))

    def slot(self, row: int) -> list[int]:
        """State slot from which the row starts."""
        return self.blocks.table(row)[1].tolist()

    def step(self, row: int, num_tokens: int) -> Saved:
        """Compute `num_tokens` of the row, or up to its next snapshot, without ending the step."""
        which = np.array([row])
        count = self.blocks.cut(which, np.array([num_tokens], np.int32))
        end = self.rows.num_computed[which] + count
        assert self.blocks.grow(which, end) is not None
        self.rows.num_computed[which] = end
        self.rows.announced[which] = True
        known = self.rows.num_tokens[which] - self.rows.pending[which]
        self.blocks.register(which, np.minimum(end, known))
        added = self.blocks.save_states(which, end)
        columns = (added.row.tolist(), added.group.tolist(), added.block_id.tolist())
        return list(zip(*columns, strict=True))

    def end_step(self) -> None:
        assert self.blocks.connector_metadata() is None

    def compute(self, row: int, num_tokens: int) -> Saved:
        """So many tokens, in as many steps as it takes."""
        end = self.rows.num_computed[row] + num_tokens
        saved = []
        while self.rows.num_computed[row] < end:
            saved += self.step(row, int(end - self.rows.num_computed[row]))
            self.end_step()
        return saved

    def sample(self, row: int) -> None:
        """The row is scheduled to sample: its token is pending."""
        self.rows.num_tokens[row] += 1
        self.rows.pending[row] += 1

    def answer(self, row: int, token: int) -> None:
        """The oldest pending token is known."""
        place = self.rows.num_tokens[row] - self.rows.pending[row]
        self.rows.token_ids[row, place] = token
        self.rows.pending[row] -= 1

    def run(self, tokens, **fields) -> int:
        """A whole life; returns the tokens that were found."""
        row, match = self.enter(tokens, **fields)
        self.compute(row, len(tokens) - match.num_computed)
        self.driver.leave(row)
        return match.num_computed


@pytest.fixture
def make(make_driver):
    return lambda *args, **options: StateDriver(make_driver, *args, **options)


class TestChunks:
    def test_they_end_at_each_interval_and_at_the_last_full_block(self, make):
        states = make()
        row, _ = states.enter(LONG)
        ends = []
        while states.rows.num_computed[row] < len(LONG):
            states.step(row, 100 if not ends else len(LONG) - ends[-1])
            ends.append(int(states.rows.num_computed[row]))
        assert ends == [8, 16, 24, 28, 30]

    def test_the_last_token_is_never_part_of_a_snapshot(self, make):
        """A prompt of whole blocks: the next request reuses one block fewer, as it must compute a token."""
        states = make(snapshot_interval=100)
        row, _ = states.enter(LONG[:12])
        assert states.step(row, 12) == [(row, 1, 0)]
        assert states.rows.num_computed[row] == 8

    def test_where_two_prompts_went_different_ways(self, make):
        """13 tokens are alike, 12 of them in blocks: the second prompt leaves a snapshot there for the third."""
        states = make(snapshot_interval=100)
        prompts = [[*LONG[:13], *range(100 * i, 100 * i + 9)] for i in range(1, 4)]
        assert states.run(prompts[0]) == 0
        row, match = states.enter(prompts[1])
        assert match == Match(0)
        assert len(states.step(row, 22)) == 1
        assert states.rows.num_computed[row] == 12
        states.end_step()
        assert states.run(prompts[2]) == 12

    def test_an_interval_counts_in_whole_blocks(self, make):
        states = make(snapshot_interval=9)
        row, _ = states.enter(LONG)
        states.step(row, 30)
        assert states.rows.num_computed[row] == 12

    def test_several_rows(self, make):
        states = make()
        rows = np.array([states.enter([i, *LONG[:n]])[0] for i, n in enumerate((1, 6, 29))])
        wanted = np.array([2, 7, 30], np.int32)
        cut = states.blocks.cut(rows, wanted)
        assert cut.tolist() == [2, 4, 8]
        assert cut.dtype == np.int32

    def test_rows_that_decode_are_left_alone(self, make):
        states = make()
        row, _ = states.enter(LONG)
        one = np.ones(1, np.int32)
        assert states.blocks.cut(np.array([row]), one) is one

    @pytest.mark.parametrize("options", [{"slots": 0}, {"enable_prefix_caching": False}])
    def test_off(self, make, options):
        states = make(**options)
        assert not states.blocks.takes_snapshots
        assert [states.driver.run(LONG) for _ in range(2)] == [0, 0]

    def test_a_model_without_states_takes_none(self, make_driver):
        assert not make_driver(state_slots=8).blocks.takes_snapshots

    def test_nothing_is_shared_beside_an_opaque_group(self, make):
        states = make(groups=("opaque", "recurrent"))
        assert not states.blocks.takes_snapshots
        assert [states.driver.run(LONG) for _ in range(2)] == [0, 0]


class TestMatching:
    def test_as_far_as_the_last_snapshot(self, make):
        states = make()
        assert [states.run(LONG) for _ in range(2)] == [0, 28]

    def test_never_between_two(self, make):
        """26 tokens are alike and 24 are in full blocks; a snapshot is there after 24, after 16 and after 8."""
        for alike, found in ((26, 24), (24, 24), (23, 16), (15, 8), (7, 0)):
            states = make()
            states.run(LONG)
            row, match = states.enter([*LONG[:alike], *range(100, 105)])
            assert match == Match(found)
            assert len(states.slot(row)) == (found > 0)

    def test_a_row_starts_from_the_slot_of_its_prefix(self, make):
        states = make()
        row, _ = states.enter(LONG)
        slots = {8 * (i + 1): slot for i, (_, _, slot) in enumerate(states.compute(row, 30)[:3])}
        for alike in (24, 16, 8):
            other, match = states.enter([*LONG[:alike], 99])
            assert match == Match(alike)
            assert states.slot(other) == [slots[alike]]
        assert states.slot(row) == []

    def test_blocks_without_a_snapshot_are_not_used(self, make):
        """One slot: the snapshot of the end replaces those before it, whose blocks are of no use then."""
        states = make(1)
        states.run(LONG)
        assert states.run([*LONG[:24], 99]) == 0
        states.run([*LONG[:24], 99])
        assert states.run([*LONG[:24], 98]) == 24

    def test_a_snapshot_without_blocks_is_not_used(self, make):
        states = make()
        states.run(LONG)
        states.driver.run(range(200, 260))  # takes the other blocks
        big = [states.enter(range(1000 * i, 1000 * i + 60))[0] for i in range(1, 5)]
        for row in big:
            states.blocks.grow(np.array([row]), np.array([60], np.int32))
        assert states.blocks.num_free == 64 - 60
        for row in big:
            states.driver.leave(row)
        assert states.run(LONG) == 0

    def test_states_alone(self, make):
        states = make(groups=("recurrent",))
        assert [states.run(LONG) for _ in range(2)] == [0, 28]

    def test_a_state_is_found_in_the_next_step_not_in_this_one(self, make):
        """A step's snapshot is available when the step has ended; a request for it waits, and others do not."""
        states = make()
        first, _ = states.enter(LONG)
        states.step(first, 30)
        second, match = states.enter([*LONG[:8], 99])
        assert match is None
        states.driver.leave(second, finished=False)
        _, match = states.enter([*LONG[:4], 99, 98, 97, 96, 95])
        assert match == Match(0)
        states.end_step()
        _, match = states.enter([*LONG[:8], 99])
        assert match == Match(8)

    def test_another_salt_finds_nothing(self, make):
        states = make()
        states.run(LONG)
        assert states.run(LONG, cache_salt="a") == 0
        assert states.run(LONG, prompt_logprobs=1) == 0
        assert states.run(LONG, cache_salt="a") == 28

    def test_hits_are_counted_as_computed_tokens(self, make):
        states = make()
        states.run(LONG)
        states.run([*LONG[:26], 99])
        assert states.blocks.take_counts() == (30 + 27, 24)

    def test_snapshots_are_counted(self, make, make_driver):
        states = make()
        states.run(LONG)
        assert states.blocks.numbers() == {"state_snapshots": 4}
        assert make_driver().blocks.numbers() == {}


class TestSlots:
    def test_the_least_recently_used_is_replaced(self, make):
        states = make(2, snapshot_interval=100)
        prompts = [[i] * 5 for i in range(3)]
        states.run(prompts[0])
        states.run(prompts[1])
        assert states.run(prompts[0]) == 4
        states.run(prompts[2])
        assert states.run(prompts[0]) == 4
        assert states.run(prompts[1]) == 0

    def test_a_step_fills_a_slot_once(self, make):
        """Two slots and three rows that reach a boundary: one of them is not saved."""
        states = make(2, snapshot_interval=100)
        rows = [states.enter([i] * 5)[0] for i in range(3)]
        saved = [slot for row in rows for _, _, slot in states.step(row, 5)]
        assert sorted(saved) == [0, 1]
        states.end_step()
        assert states.run([0] * 5) == 4

    def test_equal_prefixes_are_saved_once(self, make):
        states = make(snapshot_interval=100)
        rows = [states.enter(LONG[:5])[0] for _ in range(2)]
        assert [len(states.step(row, 5)) for row in rows] == [1, 0]

    def test_a_slot_may_be_filled_in_the_step_that_starts_from_it(self, make):
        """Rows read their slot before the step, and states are copied after it."""
        states = make(1)
        states.run(LONG[:9])
        row, match = states.enter(LONG[:20])
        assert match == Match(8)
        assert states.step(row, 12) == [(row, 1, *states.slot(row))]

    def test_every_recurrent_group_has_a_copy_in_the_same_slot(self, make):
        states = make(groups=("full", "recurrent", "recurrent"))
        row, _ = states.enter(LONG[:5])
        assert states.step(row, 5) == [(row, 1, 0), (row, 2, 0)]
        states.end_step()
        other, _ = states.enter(LONG[:5])
        assert [ids.tolist() for ids in states.blocks.table(other)[1:]] == [[0], [0]]


class TestDecoding:
    """Decoding rows pass boundaries, too; with several steps in flight their tokens are known only later."""

    def started(self, states):
        row, match = states.enter(LONG[:7])
        states.compute(row, 7 - match.num_computed)
        states.sample(row)
        return row

    def test_an_answer_is_found_as_part_of_the_next_prompt(self, make):
        states = make()
        row = self.started(states)
        for token in range(100, 110):
            states.answer(row, token)
            states.step(row, 1)
            states.end_step()
            states.sample(row)
        states.driver.leave(row)
        assert states.run([*LONG[:7], *range(100, 120)]) == 16

    def test_a_copy_is_named_when_its_tokens_are_known(self, make):
        states = make()
        row = self.started(states)
        prompt = [*LONG[:7], 100, 101]
        assert len(states.step(row, 1)) == 1  # token 7 is pending
        states.end_step()
        states.sample(row)
        _, match = states.enter(prompt)
        assert match == Match(4)
        states.answer(row, 100)
        states.step(row, 1)
        states.end_step()
        _, match = states.enter(prompt)
        assert match == Match(8)

    def test_a_copy_of_tokens_that_never_came_is_given_back(self, make):
        """The request ended at a token before: the slot is free again, and found under no name."""
        states = make(3)
        row = self.started(states)
        assert len(states.step(row, 1)) == 1
        states.end_step()
        stale = int(states.rows.token_ids[row, 7])
        states.driver.leave(row)
        other, match = states.enter([*LONG[:7], stale, 101])
        assert match == Match(4)
        assert len(states.compute(other, 5)) == 1
        assert states.run([*LONG[:7], 100, 101]) == 4
        rows = [states.enter([50 + i] * 5)[0] for i in range(3)]
        assert [len(states.step(row, 5)) for row in rows] == [1, 1, 1]

    def test_a_copy_that_another_row_made_as_well_is_given_back(self, make):
        states = make(3, snapshot_interval=8)
        rows = [self.started(states) for _ in range(2)]
        assert [len(states.step(row, 1)) for row in rows] == [1, 1]
        states.end_step()
        for row in rows:
            states.answer(row, 100)
            states.driver.leave(row)
        assert states.run([*LONG[:7], 100, 101]) == 8
        rows = [states.enter([50 + i] * 5)[0] for i in range(3)]
        assert [len(states.step(row, 5)) for row in rows] == [1, 1, 1]


class TestForgetting:
    def test_a_row_that_fails_takes_its_snapshots_away(self, make):
        states = make()
        states.run(LONG[:9])
        row, _ = states.enter(LONG)
        states.compute(row, 22)
        states.driver.leave(row, drop=True)
        assert states.run(LONG[:9]) == 0

    def test_a_reset_forgets_all(self, make):
        states = make()
        states.run(LONG)
        assert states.blocks.reset()
        assert states.run(LONG) == 0
        assert states.run(LONG) == 28

    def test_a_row_that_runs_on_after_a_reset_leaves_nothing(self, make):
        states = make()
        row, _ = states.enter(LONG)
        states.compute(row, 10)
        states.blocks.reset()
        assert states.compute(row, 20) == []
        states.driver.leave(row)
        assert states.run(LONG) == 0

    def test_no_slot_is_lost(self, make):
        """However rows end, all slots can be filled in one step again."""
        states = make(5)
        for tokens, drop in ((LONG, False), (LONG[:20], True), ([7] * 9, False)):
            row, match = states.enter(tokens)
            states.compute(row, len(tokens) - match.num_computed)
            states.sample(row)
            for _ in range(6):
                states.step(row, 1)
                states.end_step()
                states.sample(row)
            states.driver.leave(row, drop=drop)
        rows = [states.enter([50 + i] * 5)[0] for i in range(5)]
        filled = {slot for row in rows for _, _, slot in states.step(row, 5)}
        assert filled == set(range(5))
