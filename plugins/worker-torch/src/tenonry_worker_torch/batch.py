"""Conversion of a step's inputs for attention and the model: slots, kept positions, the pruned last layer. Pure numpy;
worker process.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from tenonry_torch_base.attention.base import AttentionBatch, GroupTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenonry_scheduling.columns import BatchState, StepInputs
    from tenonry_torch_base.buffers import StepBuffers


def slot_mapping(inputs: StepInputs, state: BatchState, group: int = 0) -> NDArray[np.int64]:
    """The flat KV slot of each token of the step, i64[T]."""
    block_size = state.block_size
    table = state.block_table[group]
    blocks = table[inputs.token_row, inputs.positions // block_size].astype(np.int64)
    return blocks * block_size + inputs.positions % block_size


def attention_batch(
    inputs: StepInputs,
    state: BatchState,
    generation: NDArray[np.int64],
    buffers: StepBuffers,
    num_groups: int = 1,
) -> AttentionBatch:
    """The whole step, as every layer but a pruned last one sees it; `num_groups` of attention layers."""
    groups: tuple[GroupTable, ...] = ()
    if num_groups > 1:
        groups = tuple(
            GroupTable(state.block_table[group], slot_mapping(inputs, state, group))
            for group in range(num_groups)
        )
    return AttentionBatch(
        row=inputs.row,
        num_tokens=inputs.num_tokens,
        start=inputs.start,
        seq_lens=inputs.seq_lens,
        block_table=state.block_table[0],
        slot_mapping=groups[0].slot_mapping if groups else slot_mapping(inputs, state),
        generation=generation[inputs.row],
        put=buffers.put,
        groups=groups,
    )


def tokens_as_rows(batch: AttentionBatch) -> AttentionBatch:
    """Return the same tokens, each as a separate decoding row."""
    row = np.repeat(batch.row, batch.num_tokens)
    ends = np.cumsum(batch.num_tokens)
    behind = np.repeat(ends, batch.num_tokens) - np.arange(
        len(row)
    )  # tokens of its row from this one on
    seq_lens = np.repeat(batch.seq_lens, batch.num_tokens) - behind + 1
    return dataclasses.replace(
        batch,
        row=row,
        num_tokens=np.ones(len(row), np.int32),
        start=(seq_lens - 1).astype(np.int32),
        seq_lens=seq_lens.astype(np.int32),
        generation=np.repeat(batch.generation, batch.num_tokens),
        is_dependent=True,
    )


def pruned_batch(
    full: AttentionBatch, full_plan: Any, samples: NDArray[np.bool_], buffers: StepBuffers
) -> AttentionBatch:
    """The last layer's view: all K/V are written, but only the last token of each sampling row continues."""
    count = int(samples.sum())
    return AttentionBatch(
        row=full.row[samples],
        num_tokens=np.ones(count, np.int32),
        start=full.seq_lens[samples] - 1,
        seq_lens=full.seq_lens[samples],
        block_table=full.block_table,
        slot_mapping=full.slot_mapping,
        generation=full.generation[samples],
        put=lambda label, array: buffers.put(
            f"last_{label}", array
        ),  # labels are unique within a step
        full_plan=full_plan,
        groups=full.groups,
    )


def dummy_batch(
    block: int, block_size: int, count: int, buffers: StepBuffers, num_groups: int = 1
) -> AttentionBatch:
    """A prompt of `count` tokens in a block that no request has; where exactly its K/V go does not matter."""
    table = np.full((1, 1), block, np.int32)
    slots = np.full(count, block * block_size, np.int64)
    return AttentionBatch(
        row=np.zeros(1, np.int32),
        num_tokens=np.full(1, count, np.int32),
        start=np.zeros(1, np.int32),
        seq_lens=np.full(1, count, np.int32),
        block_table=table,
        slot_mapping=slots,
        generation=np.full(1, -1, np.int64),
        put=buffers.put,
        groups=(GroupTable(table, slots),) * num_groups,
    )
