"""Plan of a step for kernels over blocks: rows that decode, rows with several queries, and locations of their keys."""

from __future__ import annotations

import numpy as np
import torch

from tenonry_torch_base.attention.base import AttentionBatch
from tenonry_worker_torch_cpu.attention.paged_plan import PagedPlan

BLOCK = 4
TABLE = np.arange(24, dtype=np.int32).reshape(4, 6)
BLOCKS = torch.zeros(24, 2, BLOCK, 8)


def planned(num_tokens, start, last_seen=None):
    """A step of rows 3, 2, 1, … with the given numbers of new tokens."""
    num = np.array(num_tokens, np.int32)
    begin = np.array(start, np.int32)
    batch = AttentionBatch(
        row=np.arange(3, 3 - len(num), -1, dtype=np.int32),
        num_tokens=num,
        start=begin,
        seq_lens=begin + num,
        block_table=TABLE,
        slot_mapping=np.zeros(int(num.sum()), np.int64),
        generation=np.zeros(len(num), np.int64),
        put=lambda _, array: torch.from_numpy(array.copy()),
        last_seen=last_seen,
    )
    return PagedPlan(batch, BLOCK)


def test_rows_with_several_queries_are_apart_from_those_that_decode():
    plan = planned([3, 1, 5], [0, 6, 8])
    chunks, keys = plan.chunks(BLOCKS)
    assert chunks.begins.tolist() == [0, 4]
    assert chunks.counts.tolist() == [3, 5]
    assert keys.lengths.tolist() == [3, 13]
    assert keys.table.tolist() == TABLE[[3, 1], :4].tolist()
    decoding = plan.keys(BLOCKS)
    assert decoding.lengths.tolist() == [7]
    assert decoding.table.tolist() == TABLE[[2], :2].tolist()
    assert not plan.is_decode_only


def test_step_that_only_decodes_has_no_chunks():
    plan = planned([1, 1], [3, 4])
    assert plan.chunks(BLOCKS) is None
    assert plan.is_decode_only


def test_rows_that_see_later_tokens_are_not_for_kernels():
    assert planned([3], [2], np.array([2, 3, 4])).chunks(BLOCKS) is not None
    assert planned([3], [2], np.array([4, 4, 4])).chunks(BLOCKS) is None
