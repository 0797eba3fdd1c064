"""Retries an out-of-memory forward pass in halves. Worker process.

A forward pass only changes K/V, and writes equal values to equal slots when repeated. So a pass that ran out of memory
is retried over both halves of its tokens, which are halved again if necessary. Sampling follows once, with the logits
of all parts.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np
import torch

from tenonry_worker_torch.runner.feature import Split

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tenonry_scheduling.columns import BatchState, StepInputs
    from tenonry_worker_torch.runner.step import Step

logger = logging.getLogger("tenonry.worker")
# In torch's messages when main memory is short, or a device's for the workspace of a matrix product.
SHORT_OF_MEMORY = ("DefaultCPUAllocator", "CUBLAS_STATUS_ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for an out-of-memory error: of a device, or of main memory, from torch or from numpy."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(mark in str(error) for mark in SHORT_OF_MEMORY)


class Halving:
    """Runs forward passes `compute`, and repeats one that ran out of memory in halves; `begin` is called before each of
    these, with its rows. `split`: where a pass may be divided.
    """

    def __init__(
        self,
        state: BatchState,
        compute: Callable[[Step], None],
        begin: Callable[[NDArray[np.int32]], None],
        split: Split,
    ) -> None:
        self._state = state
        self._compute = compute
        self._begin = begin
        self._cuts_rows = split is Split.ANYWHERE
        self._times = 0

    def __call__(self, step: Step) -> None:
        """Run all necessary passes. Raises the error of the smallest one, or the first one's if it cannot be split."""
        if not self._fits(step):
            self._halves(step)

    def _fits(self, step: Step) -> bool:
        """One pass; False if memory was short. By then its frames, and the tensors in them, are gone."""
        try:
            self._compute(step)
        except (MemoryError, RuntimeError) as error:
            inputs = step.inputs
            if not is_out_of_memory(error) or middle(inputs, self._cuts_rows) is None:
                raise
            if not is_in_order(inputs, self._state):
                raise
            self._note(inputs, error)
            return False
        return True

    def _halves(self, step: Step) -> None:
        step.model_inputs = step.token_ids  # embeddings of the whole pass are freed
        if step.model_inputs.device.type == "cuda":
            torch.cuda.empty_cache()  # fragments of the cache may suffice in one piece
        cut = middle(step.inputs, self._cuts_rows)
        num_tokens = len(step.inputs.token_ids)
        parts = [step.part(0, cut), step.part(cut, num_tokens)]
        for part in parts:
            self._begin(part.inputs.row)
            self(part)
        step.join(parts)

    def _note(self, inputs: StepInputs, error: Exception) -> None:
        """Log the failure, with decreasing frequency."""
        self._times += 1
        if self._times & (self._times - 1):
            return
        logger.warning(
            "not enough memory to compute %d tokens of %d requests in one pass (%d times so far): computed in smaller "
            "parts; a smaller max_num_batched_tokens or KV cache leaves more memory to a step; %s",
            len(inputs.token_ids),
            len(inputs.row),
            self._times,
            str(error).partition("\n")[0],
        )


def middle(inputs: StepInputs, cuts_rows: bool) -> int | None:
    """Return the permitted cut nearest to the middle; None without one."""
    num_tokens = len(inputs.token_ids)
    if cuts_rows:
        return num_tokens // 2 or None
    between = inputs.query_start_loc[1:-1]
    if not len(between):
        return None
    return int(between[np.abs(between - num_tokens / 2).argmin()])


def is_in_order(inputs: StepInputs, state: BatchState) -> bool:
    """Return True if no row reads a block that a later row fills in this step, which is possible after a prefix hit."""
    size = state.block_size
    for table in state.block_table:
        filled: set[int] = set()  # by the rows after this one
        for place in range(len(inputs.row) - 1, -1, -1):
            blocks = table[inputs.row[place]]
            start = int(inputs.start[place])
            if not filled.isdisjoint(blocks[: start // size].tolist()):
                return False
            filled.update(blocks[start // size : -(-int(inputs.seq_lens[place]) // size)].tolist())
    return True
