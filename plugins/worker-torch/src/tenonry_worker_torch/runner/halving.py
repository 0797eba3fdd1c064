"""Retries an out-of-memory forward pass in halves. Worker process.

A forward pass changes nothing but K/V, and those of a token are the same, in the same slot, however often they are
written. So a pass that ran out of memory is retried, over one half of its tokens after the other, and each half that
does not fit is halved again. Nothing was sampled yet: the logits of all parts together are those of the step.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from tenonry.step import StepInputs

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tenonry.step import BatchState

    Pass = Callable[[StepInputs, torch.Tensor], "PartLogits"]

logger = logging.getLogger("tenonry.worker")
CPU_ALLOCATOR = "DefaultCPUAllocator"  # in torch's message when main memory is short


class PartLogits(NamedTuple):
    """Result of one pass: logits of its sampling tokens [S, V], and of the requested prompt tokens [P, V]."""

    samples: torch.Tensor
    prompts: torch.Tensor


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for an out-of-memory error: of a device, or of main memory, from torch or from numpy."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and CPU_ALLOCATOR in str(error)


class SmallerParts:
    """`compute` runs one pass over step and model inputs; `begin` is called before each further pass, with its rows.
    `cuts_rows`: the tokens of one row may be computed in several passes.
    """

    def __init__(
        self, state: BatchState, compute: Pass, begin: Callable[[NDArray[np.int32]], None]
    ) -> None:
        self._state = state
        self._compute = compute
        self._begin = begin
        self._times = 0

    def run(self, inputs: StepInputs, given: torch.Tensor, *, cuts_rows: bool) -> PartLogits:
        """Run all necessary passes. Raises the error of the smallest one, or the first one's if it cannot be split."""
        found = self._try(inputs, given, cuts_rows)
        return found if isinstance(found, PartLogits) else self._halves(inputs, given, cuts_rows)

    def _try(self, inputs: StepInputs, given: torch.Tensor, cuts_rows: bool) -> PartLogits | None:
        """One pass; None if memory was short. By then its frames, and the tensors in them, are gone."""
        try:
            return self._compute(inputs, given)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error) or middle(inputs, cuts_rows) is None:
                raise
            if not is_in_order(inputs, self._state):
                raise
            self._note(inputs, error)
        return None

    def _halves(self, inputs: StepInputs, given: torch.Tensor, cuts_rows: bool) -> PartLogits:
        if given.device.type == "cuda":
            torch.cuda.empty_cache()  # what is cached in pieces may be enough in one
        cut = middle(inputs, cuts_rows)
        num_tokens = len(inputs.token_ids)
        parts = []
        for begin, end in ((0, cut), (cut, num_tokens)):
            part = part_of(inputs, begin, end)
            self._begin(part.row)
            parts.append(self.run(part, given[begin:end], cuts_rows=cuts_rows))
        return PartLogits(
            torch.cat([part.samples for part in parts]), torch.cat([part.prompts for part in parts])
        )

    def _note(self, inputs: StepInputs, error: Exception) -> None:
        """Log the failure, with decreasing frequency."""
        self._times += 1
        if self._times & (self._times - 1):
            return
        logger.warning(
            "not enough memory to compute %d tokens of %d requests at once (%d times so far): computed in smaller "
            "parts; a smaller max_num_batched_tokens or KV cache leaves more memory to a step; %s",
            len(inputs.token_ids),
            len(inputs.row),
            self._times,
            str(error).partition("\n")[0],
        )


def middle(inputs: StepInputs, cuts_rows: bool) -> int | None:
    """The token before which to cut, the nearest to the middle that may be; None if there is none."""
    num_tokens = len(inputs.token_ids)
    if cuts_rows:
        return num_tokens // 2 or None
    between = inputs.query_start_loc[1:-1]
    if not len(between):
        return None
    return int(between[np.abs(between - num_tokens / 2).argmin()])


def part_of(inputs: StepInputs, begin: int, end: int) -> StepInputs:
    """The inputs of the tokens [begin, end) of a step, as those of a step of its own."""
    begins = inputs.query_start_loc[:-1]
    ends = inputs.query_start_loc[1:]
    places = np.flatnonzero((ends > begin) & (begins < end))
    begins = begins[places]
    ends = ends[places]
    first = np.maximum(begins, begin)
    last = np.minimum(ends, end)
    part = StepInputs.__new__(StepInputs)
    part.row = inputs.row[places]
    part.num_tokens = last - first
    part.start = inputs.start[places] + (first - begins)
    part.seq_lens = inputs.seq_lens[places] - (ends - last)
    part.samples = inputs.samples[places] & (last == ends)
    part.query_start_loc = np.append(first, end).astype(np.int32) - np.int32(begin)
    part.positions = inputs.positions[begin:end]
    part.token_ids = inputs.token_ids[begin:end]
    part.token_row = inputs.token_row[begin:end]
    return part


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
