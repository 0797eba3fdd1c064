"""Trial of a kernel: compares its results and its speed with our own operations. Worker process.

Both receive the same random inputs, as many as in a step of few rows and as in one of many rows.
"""

from __future__ import annotations

import logging
import time
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import torch

from tenonry_torch_base.seeded import seeded
from tenonry_worker_torch.fuse.trial import TOLERANCE, is_same

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Run = Callable[[], Sequence[torch.Tensor]]

logger = logging.getLogger("tenonry.worker")
ROWS = (3, 64)
REPEATS = 20
ENOUGH_S = 0.004  # for the timings of both with one number of rows; each is timed twice at least
# Tolerated slowness of a kernel at nearly equal speed, in times of built-in operations: each start chooses the same.
PAR = 1.2


class Candidates(NamedTuple):
    """Functions without arguments that compute the same: each changes separate tensors, and returns all results.

    `tolerance`: relative error (L2) accepted as rounding. `is_timed`: False if the kernel makes the same calls in one,
    so that a difference of time is other processes'.
    """

    own: Run
    kernel: Run
    tolerance: float = TOLERANCE
    is_timed: bool = True


def tried(kernels: str, part: str, trial: Callable[[], int]) -> int:
    """Result of the trial of a part; False, with a warning, if a kernel of the plugin raises."""
    try:
        return trial()
    except Exception as error:  # noqa: BLE001 - of a plugin; the model runs without this kernel
        logger.warning(
            "Step kernels %s: %s is left to torch, its trial failed: %s: %s",
            kernels,
            part,
            type(error).__name__,
            error,
        )
        return False


def prefers_kernel(candidates_for: Callable[[int], Candidates], *, is_timed: bool) -> bool:
    """`candidates_for` receives numbers of rows. The kernel must be correct for each, and, if timed, faster."""
    with seeded(0), torch.inference_mode():
        for count in ROWS:
            candidates = candidates_for(count)
            if not _agree(candidates):
                return False
            if is_timed and not is_quicker(candidates):
                return False
    return True


def _agree(candidates: Candidates) -> bool:
    """Compares twice, since the second call reads the states of the first."""
    for _ in range(2):
        pairs = zip(candidates.kernel(), candidates.own(), strict=True)
        if not all(is_same(got, wanted, candidates.tolerance) for got, wanted in pairs):
            return False
    return True


def is_quicker(candidates: Candidates, times: float = 1.0) -> bool:
    """Return True if the kernel takes less than `times` the time of built-in operations, by the shortest or the median
    run.

    Runs are interleaved, for equal conditions, and bounded by processor time of this thread, so that other processes do
    not reduce their number. Other processes only ever add to the shortest run; if they slow every run of one side, the
    median predicts serving.
    """
    own: list[float] = []
    kernel: list[float] = []
    end = time.thread_time() + ENOUGH_S
    for turn in range(REPEATS):
        own.append(_timed(candidates.own))
        kernel.append(_timed(candidates.kernel))
        if turn and time.thread_time() > end:
            break
    return any(of(kernel) < times * of(own) for of in (min, median))


def _timed(run: Run) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin
