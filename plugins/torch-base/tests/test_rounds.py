"""The passes of a round as one answer."""

from __future__ import annotations

import numpy as np

from tenonry.step import ModelRunnerOutput, TokenLogprobs
from tenonry_torch_base.rounds import joined


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
