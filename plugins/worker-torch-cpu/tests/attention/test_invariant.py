"""Plan of a step for kernels of batch invariance: destination of K/V, and visible keys of each query."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from tenonry_torch_base.attention.base import AttentionBatch
from tenonry_worker_torch_cpu.attention.invariant import GROUP_QUERIES, InvariantPlan

BLOCK = 4
ROWS = st.lists(
    st.tuples(st.integers(1, 3 * GROUP_QUERIES), st.integers(0, 9)), min_size=0, max_size=5
)


@given(ROWS)
def test_each_query_is_in_one_group_of_its_row(rows):
    num = np.array([count for count, _ in rows], np.int32)
    start = np.array([begin for _, begin in rows], np.int32)
    order = np.arange(len(rows), 0, -1, dtype=np.int32)
    table = np.arange(6 * 12, dtype=np.int32).reshape(6, 12)
    slots = np.arange(num.sum(), dtype=np.int64)
    batch = AttentionBatch(
        row=order,
        num_tokens=num,
        start=start,
        seq_lens=start + num,
        block_table=table,
        slot_mapping=slots,
        generation=np.zeros(len(rows), np.int64),
        put=lambda _, array: torch.from_numpy(array.copy()),
    )
    plan = InvariantPlan(batch, BLOCK)
    blocks = torch.zeros(2, 2, BLOCK, 8)
    keys = plan.keys(blocks)
    wanted = [
        (line, begin + token) for line, (count, begin) in enumerate(rows) for token in range(count)
    ]
    found = []
    groups = zip(keys.begins.tolist(), keys.counts.tolist(), keys.lines.tolist(), strict=True)
    for begin, count, line in groups:
        assert 1 <= count <= GROUP_QUERIES
        assert begin == len(found)
        found += [(line, position) for position in keys.positions[begin : begin + count].tolist()]
    assert found == wanted
    width = -(-max(start + num, default=1) // BLOCK)
    assert keys.table.tolist() == [table[row, :width].tolist() for row in order]
    assert keys.slots.tolist() == slots.tolist()
    assert keys.blocks is blocks
    other = torch.ones(2, 2, BLOCK, 8)
    assert plan.keys(other)._replace(blocks=blocks)[0] is blocks
    assert plan.keys(other).blocks is other
