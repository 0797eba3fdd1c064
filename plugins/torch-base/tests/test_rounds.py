"""The passes of a round as one answer."""

from __future__ import annotations

from functools import partial

import msgspec
import numpy as np

from tenonry.sampling_params import SamplingParams
from tenonry.step import ModelRunnerOutput, NewRow, SchedulerOutput, TokenLogprobs
from tenonry_scheduling.columns import BatchState
from tenonry_torch_base.rounds import Rounds, joined


def logprobs_of(row, token_ids):
    """Each value is a hundredth of its id."""
    ids = np.array(token_ids, np.int32)
    return TokenLogprobs(
        np.array(row, np.int32), ids, ids / np.float32(-100), np.arange(len(ids), dtype=np.int32)
    )


def answer(row, tokens, logprobs=None, failed=()):
    return ModelRunnerOutput(
        step_id=3,
        row=np.array(row, np.int32),
        offsets=np.cumsum([0, *map(len, tokens)]).astype(np.int32),
        token_ids=np.array([token for ids in tokens for token in ids], np.int32),
        logprobs=logprobs,
        failed_row=np.array(failed, np.int32),
        failed_code=np.array([1] * len(failed), np.int32),
    )


def lines_by_row(result):
    found = {}
    for row, ids in zip(result.logprobs.row.tolist(), result.logprobs.token_ids, strict=True):
        found.setdefault(row, []).append(ids.tolist())
    return found


def test_each_rows_log_probabilities_stay_in_order():
    """Lines with fewer tokens are filled up with their chosen one."""
    passes = [
        answer([5, 2], [[11, 12], [21]], logprobs_of([5, 2, 5], [[11, 1], [21, 2], [12, 3]])),
        answer([2, 5], [[22], [13]], logprobs_of([2, 5], [[22, 4, 6], [13, 5, 7]])),
        answer([5], [[14]]),
    ]
    result = joined(passes)
    assert result.row.tolist() == [5, 2]
    assert result.token_ids.tolist() == [11, 12, 13, 14, 21, 22]
    assert lines_by_row(result) == {
        5: [[11, 1, 11], [12, 3, 12], [13, 5, 7]],
        2: [[21, 2, 21], [22, 4, 6]],
    }
    assert np.allclose(result.logprobs.logprobs, result.logprobs.token_ids / -100)
    assert result.logprobs.rank.tolist() == [0, 1, 2, 0, 1]


def test_rows_that_failed_have_none():
    passes = [
        answer([0, 1], [[11], [21]], logprobs_of([0, 1], [[11], [21]])),
        answer([1], [[22]], logprobs_of([1], [[22]]), failed=[0]),
    ]
    assert lines_by_row(joined(passes)) == {1: [[21], [22]]}


def test_none_where_no_row_asks():
    assert joined([answer([0], [[1]]), answer([0], [[2]])]).logprobs is None


def entered(make_several):
    """Rounds over two rows, whose passes that run one by one are counted."""
    state = BatchState(2, 32, 4)
    passes = []

    def execute(output):
        passes.append(len(output.row))
        state.apply(output)
        state.record_sampled(output.row, np.full(len(output.row), 7, np.int32))
        return answer(output.row.tolist(), [[7]] * len(output.row))

    rounds = Rounds(state, execute, make_several(state))
    new = [
        NewRow(
            row=row,
            handle=row + 1,
            token_ids=np.array([1, 2], np.int32),
            num_computed=1,
            num_output=1,
            block_ids=(np.array([row], np.int32),),
            sampling=SamplingParams(min_tokens=4 * row),
            stop_token_ids=(5, 9)[: row + 1],
        )
        for row in range(2)
    ]
    for each in new:
        rounds.enter(each)
    rows = np.arange(2, dtype=np.int32)
    step = SchedulerOutput(
        step_id=3,
        new=new,
        row=rows,
        num_tokens=np.ones(2, np.int32),
        next_token=np.full(2, -1, np.int32),
        samples=np.ones(2, np.bool_),
        generation=np.zeros(2, np.int32),
        total_tokens=2,
        round_tokens=5,
    )
    return rounds, step, passes


class Several:
    """Applies row changes and answers; records what it was called with."""

    def __init__(self, state, accepts=True):
        self.state = state
        self.is_accepting = accepts
        self.calls = []

    def accepts(self, row):
        return self.is_accepting

    def start(self, output, rounds):
        self.calls.append(output.step_id)
        self.state.change_rows(output)

    def __call__(self, step_id, row, most, ends):
        self.calls.append((row.tolist(), most, ends.stop_ids.tolist(), ends.free.tolist()))
        assert self.state.num_computed[row].tolist() == [2, 2]
        assert self.state.token_ids[row, 2].tolist() == [7, 7]
        return answer([0, 1], [[8, 5], [8, 8, 8, 8, 8]])


def decoding(rounds, step):
    """The step after one that entered the rows and sampled token 7."""
    rounds.run(msgspec.structs.replace(step, round_tokens=1))
    return msgspec.structs.replace(step, step_id=4, new=[])


def test_all_passes_run_in_one_call_where_they_can():
    rounds, step, passes = entered(Several)
    step = decoding(rounds, step)
    result = rounds.run(step)
    assert passes == [2]  # the one that entered the rows
    # One output came with the rows and one was made: the second row may end with its fourth.
    assert rounds.several.calls == [4, ([0, 1], 5, [[5, -1], [5, 9]], [0, 1])]
    assert result.token_ids.tolist() == [8, 5, 8, 8, 8, 8, 8]
    assert result.offsets.tolist() == [0, 2, 7]


def test_passes_run_one_by_one_where_one_call_is_not_accepted():
    rounds, step, passes = entered(partial(Several, accepts=False))
    assert rounds.run(decoding(rounds, step)).token_ids.tolist() == [7] * 10
    assert passes == [2] * 6
    assert rounds.several.calls == []


def test_passes_run_one_by_one_where_rows_enter():
    rounds, step, passes = entered(Several)
    assert rounds.run(step).token_ids.tolist() == [7] * 10
    assert passes == [2] * 5


def test_a_row_does_not_end_at_the_stop_ids_of_its_previous_request():
    rounds = Rounds(BatchState(2, 16, 4), lambda output: answer([], []))
    for stops in ((7, 8, 9), (5,)):
        new = NewRow(
            row=1,
            handle=1,
            token_ids=np.array([1], np.int32),
            num_computed=0,
            num_output=0,
            block_ids=(),
            sampling=SamplingParams(),
            stop_token_ids=stops,
        )
        rounds.enter(new)
    tokens = np.array([5, 7, 8, 9], np.int32)
    ends = rounds.ends(np.ones(4, np.int32), tokens, np.ones(4, np.int32))
    assert ends.tolist() == [True, False, False, False]
