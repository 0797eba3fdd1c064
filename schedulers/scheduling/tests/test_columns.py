"""BatchState: effects of a SchedulerOutput on columns, compared with plain lists that are obviously right."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tenonry.sampling_params import SamplingParams
from tenonry.step import NewRow, SchedulerOutput
from tenonry_scheduling.columns import BatchState

SEQS, LENGTH, BLOCK = 4, 24, 4
GREEDY = SamplingParams(temperature=0)


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def new_row(
    row: int,
    tokens: list[int],
    *,
    handle: int = 1,
    computed: int = 0,
    output: int = 0,
    blocks: Any = ((),),
) -> NewRow:
    return NewRow(
        row=row, handle=handle, token_ids=i32(*tokens), num_computed=computed, num_output=output,
        block_ids=tuple(i32(*ids) for ids in blocks), sampling=GREEDY,
    )  # fmt: skip


def step(rows: dict[int, tuple[int, int, bool]] | None = None, **fields: Any) -> SchedulerOutput:
    """`rows`: row → (num_tokens, next_token, samples)."""
    columns = list(zip(*(rows or {}).values(), strict=True)) or [(), (), ()]
    return SchedulerOutput(
        step_id=0, row=i32(*(rows or {})), num_tokens=i32(*columns[0]), next_token=i32(*columns[1]),
        samples=np.array(columns[2], np.bool_), **fields,
    )  # fmt: skip


class TestInputs:
    def test_a_prompt_in_two_chunks_then_a_decode(self):
        state = BatchState(SEQS, LENGTH, BLOCK)
        inputs = state.apply(
            step(
                {2: (3, 10, False)},
                new=[new_row(2, [10, 11, 12, 13, 14], handle=9, blocks=[[5, 6]])],
            )
        )
        assert inputs.token_ids.tolist() == [10, 11, 12]
        assert inputs.positions.tolist() == [0, 1, 2]
        assert inputs.start.tolist() == [0]
        assert inputs.seq_lens.tolist() == [3]
        assert int(state.handle[2]) == 9
        assert int(state.num_prompt[2]) == 5
        assert int(state.num_output[2]) == 0
        inputs = state.apply(step({2: (2, 13, True)}))
        assert inputs.token_ids.tolist() == [13, 14]
        assert inputs.positions.tolist() == [3, 4]
        assert inputs.samples.tolist() == [True]
        state.record_sampled(i32(2), i32(77))
        inputs = state.apply(
            step(
                {2: (1, -1, True)},
                new_block_row=i32(2),
                new_block_group=i32(0),
                new_block_id=i32(8),
            )
        )
        assert inputs.token_ids.tolist() == [77]
        assert inputs.positions.tolist() == [5]
        assert state.block_table[0][2, :3].tolist() == [5, 6, 8]
        assert int(state.num_output[2]) == 2

    def test_a_mixed_batch_is_flattened_in_the_order_of_its_rows(self):
        state = BatchState(SEQS, LENGTH, BLOCK)
        rows = [
            new_row(3, [1, 2, 3], handle=1, computed=1),
            new_row(0, [4, 5], handle=2, computed=1),
        ]
        inputs = state.apply(step({3: (2, 2, True), 0: (1, 5, True)}, new=rows))
        assert inputs.query_start_loc.tolist() == [0, 2, 3]
        assert inputs.token_row.tolist() == [3, 3, 0]
        assert inputs.positions.tolist() == [1, 2, 1]
        assert inputs.token_ids.tolist() == [2, 3, 5]
        assert inputs.seq_lens.tolist() == [3, 2]

    def test_without_a_sample_the_next_token_is_unknown(self):
        state = BatchState(SEQS, LENGTH, BLOCK)
        state.apply(step({0: (2, 1, True)}, new=[new_row(0, [1, 2])]))
        assert state.apply(step({0: (1, -1, True)})).token_ids.tolist() == [-1]

    def test_a_token_that_is_sent_wins(self):
        """An executor without feedback gets every token from the scheduler."""
        state = BatchState(SEQS, LENGTH, BLOCK)
        state.apply(step({0: (2, 1, True)}, new=[new_row(0, [1, 2])]))
        assert state.apply(step({0: (1, 55, True)})).token_ids.tolist() == [55]

    def test_an_empty_step_changes_nothing(self):
        state = BatchState(SEQS, LENGTH, BLOCK)
        inputs = state.apply(step())
        assert inputs.query_start_loc.tolist() == [0]
        assert len(inputs.token_ids) == len(inputs.positions) == len(inputs.token_row) == 0

    def test_the_longest_sequence_has_room_for_its_last_sample(self):
        state = BatchState(SEQS, LENGTH, BLOCK)
        state.apply(step({0: (LENGTH, 1, True)}, new=[new_row(0, [1] * LENGTH)]))
        state.record_sampled(i32(0), i32(9))
        assert int(state.token_ids[0, LENGTH]) == 9

    def test_a_row_is_preempted_and_returns_in_one_step(self):
        """`gone` comes first: the same row may enter again, with other blocks and the tokens known by then."""
        state = BatchState(SEQS, LENGTH, BLOCK)
        state.apply(step({1: (3, 1, True)}, new=[new_row(1, [1, 2, 3], handle=5, blocks=[[0, 1]])]))
        state.record_sampled(i32(1), i32(4))
        back = new_row(1, [1, 2, 3, 4], handle=5, output=1, blocks=[[7]])
        block = {"new_block_row": i32(1), "new_block_group": i32(0), "new_block_id": i32(3)}
        inputs = state.apply(step({1: (4, 1, True)}, gone=i32(1), new=[back], **block))
        assert inputs.token_ids.tolist() == [1, 2, 3, 4]
        assert int(state.num_blocks[0, 1]) == 2
        assert state.block_table[0][1, :2].tolist() == [7, 3]
        assert int(state.num_prompt[1]) == 3
        assert int(state.num_output[1]) == 2

    def test_rows_that_leave_hold_nothing(self):
        state = BatchState(SEQS, LENGTH, BLOCK, num_groups=2)
        state.apply(step(new=[new_row(1, [1], handle=5, blocks=[[0], [1]])]))
        state.apply(step(gone=i32(1)))
        assert int(state.handle[1]) == 0
        assert state.num_blocks[:, 1].tolist() == [0, 0]


class NaiveRow:
    def __init__(
        self, tokens: list[int], computed: int, output: int, blocks: list[list[int]]
    ) -> None:
        self.tokens, self.computed, self.output = [*tokens], computed, output
        self.blocks = [[*ids] for ids in blocks]


@given(st.data(), st.integers(1, 3))
def test_any_sequence_of_steps_agrees_with_a_naive_model(data, groups):
    """Rows enter, leave, return, prefill in chunks, decode with known and with unknown tokens, and get blocks."""
    state = BatchState(SEQS, LENGTH, BLOCK, num_groups=groups)
    model: dict[int, NaiveRow] = {}
    token, next_block = st.integers(0, 9), iter(range(100_000))

    def blocks_for(tokens: int) -> list[list[int]]:
        count = -(-tokens // BLOCK)
        return [[next(next_block) % 1000 for _ in range(count)] for _ in range(groups)]

    for _ in range(data.draw(st.integers(1, 10))):
        gone = data.draw(st.lists(st.sampled_from(sorted(model)), unique=True)) if model else []
        for row in gone:
            del model[row]
        new = []
        for row in data.draw(st.lists(st.integers(0, SEQS - 1), unique=True)):
            if row in model:
                continue
            tokens = data.draw(st.lists(token, min_size=1, max_size=10))
            computed = data.draw(st.integers(0, len(tokens) - 1))
            output = data.draw(st.integers(0, len(tokens) - 1))
            model[row] = NaiveRow(tokens, computed, output, blocks_for(len(tokens)))
            new.append(
                new_row(
                    row,
                    tokens,
                    handle=row + 1,
                    computed=computed,
                    output=output,
                    blocks=model[row].blocks,
                )
            )
        scheduled, added, expected = {}, [], []
        chosen = data.draw(st.permutations(sorted(model)))
        for row in chosen[: data.draw(st.integers(0, len(chosen)))]:
            naive = model[row]
            left = len(naive.tokens) - naive.computed
            if naive.computed >= LENGTH - 1:
                continue
            count = data.draw(st.integers(1, left))
            samples = count == left
            position = naive.computed
            known = data.draw(st.booleans()) or naive.tokens[position] < 0
            if naive.tokens[position] < 0:
                naive.tokens[position] = data.draw(
                    token
                )  # the scheduler has a token that the worker lacks
            scheduled[row] = (count, naive.tokens[position] if known else -1, samples)
            expected += [
                (row, place, naive.tokens[place]) for place in range(position, position + count)
            ]
            naive.computed += count
            naive.output += samples
            if samples:
                naive.tokens.append(-1)
                for group, ids in enumerate(naive.blocks):
                    if len(naive.tokens) > len(ids) * BLOCK:
                        added.append((row, group, next(next_block) % 1000))
                        ids.append(added[-1][2])
        columns = [i32(*column) for column in zip(*added, strict=True)] or [i32(), i32(), i32()]
        inputs = state.apply(
            step(scheduled, gone=i32(*gone), new=new, new_block_row=columns[0], new_block_group=columns[1],
                 new_block_id=columns[2])
        )  # fmt: skip
        assert list(
            zip(inputs.token_row.tolist(), inputs.positions.tolist(), inputs.token_ids.tolist(), strict=True)
        ) == expected  # fmt: skip
        sampled = [row for row in scheduled if scheduled[row][2] and data.draw(st.booleans())]
        ids = [data.draw(token) for _ in sampled]
        state.record_sampled(i32(*sampled), i32(*ids))
        for row, token_id in zip(sampled, ids, strict=True):
            model[row].tokens[-1] = token_id
        for row in range(SEQS):
            compare(state, row, model.get(row))


def compare(state: BatchState, row: int, naive: NaiveRow | None) -> None:
    if naive is None:
        assert int(state.handle[row]) == 0
        assert not state.num_blocks[:, row].any()
        return
    assert int(state.handle[row]) == row + 1
    assert int(state.num_computed[row]) == naive.computed
    assert int(state.num_output[row]) == naive.output
    assert state.token_ids[row, : len(naive.tokens)].tolist() == naive.tokens
    for group, ids in enumerate(naive.blocks):
        assert state.block_table[group][row, : state.num_blocks[group, row]].tolist() == ids
