"""KV transfers of several ranks: one outcome for all their reports."""

from __future__ import annotations

import numpy as np

from tenonry.sampling_params import SamplingParams
from tenonry.step import NewRow, SchedulerOutput
from tenonry_kvcache.rank_transfers import RankTransfers


def enter(*rows: int) -> SchedulerOutput:
    """A step in which handle 10 × row starts in each row."""
    new = [
        NewRow(
            row=row,
            handle=10 * row,
            token_ids=np.array([1], np.int32),
            num_computed=0,
            num_output=0,
            block_ids=(),
            sampling=SamplingParams(),
        )
        for row in rows
    ]
    return SchedulerOutput(step_id=0, new=new)


def test_a_transfer_is_done_when_every_rank_said_so():
    transfers = RankTransfers(3)
    transfers.add(0, [7, 8], [])
    transfers.add(2, [8], [])
    assert transfers.take() == ([], [])
    transfers.add(1, [8, 7], [])
    assert transfers.take() == ([8], [])
    transfers.add(2, [7], [])
    assert transfers.take() == ([7], [])
    assert transfers.take() == ([], [])


def test_one_that_failed_on_one_rank_has_failed_once_the_others_have_named_it():
    """Until then they may still write into its blocks."""
    transfers = RankTransfers(2)
    transfers.add(1, [], [7])
    assert transfers.take() == ([], [])
    transfers.add(0, [7], [])
    assert transfers.take() == ([], [7])


def test_one_that_failed_on_all_is_reported_once():
    transfers = RankTransfers(2)
    transfers.add(0, [], [7])
    transfers.add(1, [], [7])
    assert transfers.take() == ([], [7])
    assert transfers.take() == ([], [])


def test_a_load_within_the_step_fails_with_the_first_rank():
    """The others name none that went well; a later transfer of the same request is a new one."""
    transfers = RankTransfers(2)
    transfers.begin(enter(3))
    transfers.add(0, [], [])
    transfers.add(1, [], [30])
    assert transfers.take() == ([], [30])
    transfers.begin(SchedulerOutput(step_id=1, gone=np.array([3], np.int32)))
    transfers.add(0, [30], [])
    assert transfers.take() == ([], [])
    transfers.add(1, [30], [])
    assert transfers.take() == ([30], [])


def test_such_a_load_that_fails_on_two_ranks_is_reported_once():
    transfers = RankTransfers(2)
    transfers.begin(enter(3))
    transfers.add(0, [], [30])
    transfers.add(1, [], [30])
    assert transfers.take() == ([], [30])
    assert transfers.take() == ([], [])


def test_a_load_that_fails_while_its_row_leaves_in_the_next_step_is_reported():
    """Steps begin in the order of their answers; a failure in the step that leaves is another transfer."""
    transfers = RankTransfers(2)
    transfers.begin(enter(3))
    transfers.add(0, [], [])
    transfers.add(1, [], [30])
    assert transfers.take() == ([], [30])
    transfers.begin(SchedulerOutput(step_id=1, gone=np.array([3], np.int32)))
    transfers.add(1, [], [30])
    assert transfers.take() == ([], [])
    transfers.add(0, [30], [])
    assert transfers.take() == ([], [30])
