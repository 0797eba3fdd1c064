"""Maximum number of rows for which a kernel is faster than built-in operations. Worker process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from tenonry_torch_base.seeded import seeded
from tenonry_worker_torch.fuse.layer import KERNEL_TOKENS
from tenonry_worker_torch.fuse.trial import is_same
from tenonry_worker_torch_cpu.kernels.trial import PAR, is_quicker

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenonry_worker_torch_cpu.kernels.trial import Candidates

COUNTS = (1, 8, 64)
LIMIT_S = 0.4  # on a processor, for all trials of a model together


class Budget:
    """Remaining time for trials, in processor time of this thread: a busy machine completes as many trials as an idle
    one.
    """

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self.left_s = limit_s

    def most_rows(
        self,
        candidates_for: Callable[[int], Candidates],
        *,
        is_timed: bool,
        if_untried: int = 0,
        times: float = 1.0,
    ) -> int:
        """Return the largest of `COUNTS` up to which the kernel is correct and, if timed, takes less than `times` the
        time of built-in operations for the first and never more; 0 for none; for the last one, the maximum number
        of rows of kernels.

        Trials end when the next one would exceed the budget: beyond, built-in operations compute, or the kernel up to
        `if_untried` rows, which must have been correct and faster for the first number.
        """
        most = 0
        took = 0.0
        with seeded(0), torch.inference_mode():
            for before, count in zip((1, *COUNTS), COUNTS, strict=False):
                if is_timed and took * count / before > self.left_s:
                    if not if_untried:
                        break
                    if most:
                        return if_untried
                begin = time.thread_time()
                is_quicker = _compared(candidates_for(count), is_timed, PAR if most else times)
                if is_quicker is None:
                    return 0
                took = time.thread_time() - begin
                self.left_s -= took
                if not is_quicker:
                    break
                most = count
        return KERNEL_TOKENS if most == COUNTS[-1] else most

    def is_better(self, candidates_for: Callable[[], Candidates], *, is_timed: bool) -> bool:
        """Return True if a kernel, for one number of rows or for any, is correct and, if timed, takes less than `PAR`
        times the time of our operations.
        """
        begin = time.thread_time()
        with seeded(0), torch.inference_mode():
            candidates = candidates_for()
            verdict = _compared(candidates, is_timed and candidates.is_timed, PAR)
        self.left_s -= time.thread_time() - begin
        return bool(verdict)


def _compared(candidates: Candidates, is_timed: bool, times: float) -> bool | None:
    """Return True if the kernel is fast enough, if timed; None if it is wrong."""
    if not _agree(candidates):
        return None
    return not is_timed or is_quicker(candidates, times)


def _agree(candidates: Candidates) -> bool:
    """Compares results, up to rounding in 16 bits."""
    pairs = zip(candidates.kernel(), candidates.own(), strict=True)
    return all(is_same(got.float(), wanted.float(), candidates.tolerance) for got, wanted in pairs)
