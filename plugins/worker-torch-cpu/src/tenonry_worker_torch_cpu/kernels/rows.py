"""Maximum number of rows of a kernel that is faster than our operations for few, and may not be for many. Worker
process.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from tenonry_torch_base.seeded import seeded
from tenonry_worker_torch.fuse.layer import KERNEL_TOKENS
from tenonry_worker_torch.fuse.trial import is_same
from tenonry_worker_torch_cpu.kernels.trial import PAR

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenonry_worker_torch_cpu.kernels.trial import Candidates, Run

COUNTS = (1, 8, 64)
LIMIT_S = 0.4  # for all trials of a model together
REPEATS = 20
ENOUGH_S = 0.004  # for the timings of both with one number of rows; each is timed twice at least


class Budget:
    """Remaining time for trials."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self.left_s = limit_s

    def most_rows(
        self, candidates_for: Callable[[int], Candidates], *, is_timed: bool, if_untried: int = 0
    ) -> int:
        """The largest of `COUNTS` up to which the kernel is correct and, if timed, faster for the first and never
        slower; 0: for none. If that is the last one, the maximum number of rows of kernels.

        Trials end when the next one would exceed the budget: beyond, our own operations compute, or the kernel up to
        `if_untried` rows, which must have been correct and faster for the first number all the same.
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
                begin = time.perf_counter()
                is_quicker = _compared(candidates_for(count), is_timed, PAR if most else 1.0)
                if is_quicker is None:
                    return 0
                took = time.perf_counter() - begin
                self.left_s -= took
                if not is_quicker:
                    break
                most = count
        return KERNEL_TOKENS if most == COUNTS[-1] else most

    def is_better(self, candidates_for: Callable[[], Candidates], *, is_timed: bool) -> bool:
        """Return True if a kernel, for one number of rows or for any, is correct and, if timed, faster."""
        begin = time.perf_counter()
        with seeded(0), torch.inference_mode():
            candidates = candidates_for()
            verdict = _compared(candidates, is_timed, candidates.times)
        self.left_s -= time.perf_counter() - begin
        return bool(verdict)


def _compared(candidates: Candidates, is_timed: bool, times: float) -> bool | None:
    """Return True if the kernel is fast enough, if that matters; None if it is wrong."""
    if not _agree(candidates):
        return None
    return not is_timed or _is_quicker(candidates, times)


def _agree(candidates: Candidates) -> bool:
    """Compares results, up to rounding in 16 bits."""
    pairs = zip(candidates.kernel(), candidates.own(), strict=True)
    return all(is_same(got.float(), wanted.float(), candidates.tolerance) for got, wanted in pairs)


def _is_quicker(candidates: Candidates, times: float) -> bool:
    """Return True if the kernel takes less than `times` the time of our operations.

    By the shortest of interleaved runs, so that both see the same machine.
    """
    own = kernel = float("inf")
    end = time.perf_counter() + ENOUGH_S
    for turn in range(REPEATS):
        own = min(own, _timed(candidates.own))
        kernel = min(kernel, _timed(candidates.kernel))
        if turn and time.perf_counter() > end:
            break
    return kernel < times * own


def _timed(run: Run) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin
