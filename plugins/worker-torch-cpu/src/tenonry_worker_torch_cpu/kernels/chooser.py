"""Chooses step kernels for the parts of one model: which are correct, and faster than the operations of torch. Worker
process.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from tenonry_torch_base.step_kernels import Refusal
from tenonry_worker_torch_cpu.kernels.rows import LIMIT_S, Budget
from tenonry_worker_torch_cpu.kernels.trial import prefers_kernel, tried

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenonry_torch_base.step_kernels import StepKernels
    from tenonry_worker_torch.step_kernels import FoundKernels
    from tenonry_worker_torch_cpu.kernels.trial import Candidates

logger = logging.getLogger("tenonry.worker")
ANY_ROWS = sys.maxsize


class KernelChooser:
    """Tries one part of each kind, and counts parts by their verdict. A kind begins with the part's name.

    `counts`, `left`: parts with a kernel, and parts that torch computes. `rows`: maximum rows of a kernel by part, 0 if
    torch computes.
    """

    def __init__(self, found: FoundKernels, limit_s: float = LIMIT_S) -> None:
        self.found = found
        self.counts: Counter[str] = Counter()
        self.left: Counter[str] = Counter()
        self.rows: dict[str, int] = {}
        self._budget = Budget(limit_s)
        self._verdicts: dict[tuple[object, ...], int] = {}

    @property
    def kernels(self) -> StepKernels:
        """The kernels to choose from."""
        return self.found.kernels

    def make(self, parts: Any) -> Any:
        """The kernel of these parts; None, with the reason at DEBUG, if there is none."""
        made = self.found.kernels.make(parts)
        if isinstance(made, Refusal):
            logger.debug("Step kernels %s: %s", self.found.text, made.reason)
            return None
        return made

    @property
    def is_timed(self) -> bool:
        """False for kernels that the user named, which are used wherever they are correct."""
        return not self.found.is_asked_for

    def prefers(self, kind: tuple[object, ...], compared: Callable[[int], Candidates]) -> bool:
        """Return True if the kernel is correct and faster for each number of rows of a trial."""
        return bool(self.count(kind, partial(prefers_kernel, compared, is_timed=self.is_timed)))

    def is_better(self, kind: tuple[object, ...], compared: Callable[[], Candidates]) -> bool:
        """Return True if the kernel is correct and faster, for any number of rows."""
        return bool(
            self.count(kind, partial(self._budget.is_better, compared, is_timed=self.is_timed))
        )

    def most_rows(
        self, kind: tuple[object, ...], compared: Callable[[int], Candidates], if_untried: int = 0
    ) -> int:
        """Number of rows up to which the kernel is correct and faster; see `Budget.most_rows`."""
        trial = self.rows_trial(compared, if_untried, is_timed=self.is_timed)
        return self.count(kind, trial)

    def rows_trial(
        self, compared: Callable[[int], Candidates], if_untried: int = 0, *, is_timed: bool
    ) -> Callable[[], int]:
        """Trial of `most_rows`."""
        return partial(self._budget.most_rows, compared, is_timed=is_timed, if_untried=if_untried)

    def count(self, kind: tuple[object, ...], trial: Callable[[], int]) -> int:
        """Verdict on a kind, counted for one part."""
        verdict = self.verdict(kind, trial)
        counts = self.counts if verdict else self.left
        counts[str(kind[0])] += 1
        return verdict

    def verdict(self, kind: tuple[object, ...], trial: Callable[[], int]) -> int:
        """Result of the trial of the first part of a kind; 0 or False: torch computes."""
        if kind not in self._verdicts:
            self._verdicts[kind] = int(tried(self.found.text, str(kind[0]), trial))
        return self._verdicts[kind]

    def forget(self) -> None:
        """Drop the counts: no part has a kernel any more."""
        self.counts.clear()
        self.rows.clear()

    @property
    def text(self) -> str:
        """Summary for the log."""
        text = f"Step kernels {self.found.text}: {listed(self.counts) or 'none'}"
        if self.rows:
            rows = ", ".join(
                f"{part} any" if most == ANY_ROWS else f"{part} to {most}"
                for part, most in self.rows.items()
            )
            text = f"{text}; rows, more with torch: {rows}"
        return f"{text}; with torch: {listed(self.left)}" if self.left else text


def listed(counts: Counter[str]) -> str:
    """Numbers and names, for the log."""
    return ", ".join(f"{count} × {part}" for part, count in counts.items())
