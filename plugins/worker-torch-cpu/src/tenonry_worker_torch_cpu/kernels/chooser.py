"""Chooses step kernels for the parts of one model: correct ones that are faster than torch's operations. Worker
process.

Suppliers, one for each kind of model, walk its modules once and yield candidates; the chooser makes their kernels,
tries one of each kind, assigns the selected ones through the undo stack, and reports.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from tenonry_torch_base.step_kernels import Refusal
from tenonry_worker_torch.fuse.layer import KERNEL_TOKENS
from tenonry_worker_torch_cpu.kernels.candidate import Trial
from tenonry_worker_torch_cpu.kernels.rows import LIMIT_S, Budget
from tenonry_worker_torch_cpu.kernels.trial import prefers_kernel, tried

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tenonry_torch_base.step_kernels import StepKernels
    from tenonry_worker_torch.changes import Changes
    from tenonry_worker_torch.step_kernels import FoundKernels
    from tenonry_worker_torch_cpu.kernels.candidate import Candidate
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

    def apply(self, candidates: Iterable[Candidate], changes: Changes) -> None:
        """Assign the selected kernels to their places, in order: a candidate may depend on earlier ones."""
        for each in candidates:
            made = None if each.parts is None else self.make(each.parts)
            tried_one = made if each.sample is None or made is None else self.make(each.sample)
            if made is None or tried_one is None:
                if each.reports_refusal:
                    self.left[each.part] += 1
                continue
            most = self._most_rows(each, each.compared(tried_one))
            if each.rows_name is not None:
                self.rows[each.rows_name] = most
            if most:
                each.assign(changes, made, most)

    def _most_rows(self, each: Candidate, compared: Callable[..., Candidates]) -> int:
        """Verdict on a candidate: 0 if torch computes, the number of rows of a trial of `ROWS`, otherwise 1."""
        if each.trial is Trial.SIZES:
            return int(self.prefers(each.kind, compared))
        if each.trial is Trial.ONCE:
            trial = partial(self._budget.is_better, compared, is_timed=self.is_timed)
            return self.count(each.kind, trial)
        trial = self.rows_trial(compared, each.if_untried, times=each.times, is_timed=self.is_timed)
        most = self.count(each.kind, trial)
        return each.if_untried or most if most == KERNEL_TOKENS else most

    def make(self, parts: Any) -> Any:
        """Return the kernel of these parts; None, with the reason at DEBUG, without one."""
        made = self.found.kernels.make(parts)
        if isinstance(made, Refusal):
            logger.debug("Step kernels %s: %s", self.found.text, made.reason)
            return None
        return made

    @property
    def is_timed(self) -> bool:
        """False for kernels selected by the user, which are used wherever they are correct."""
        return not self.found.is_asked_for

    def prefers(self, kind: tuple[object, ...], compared: Callable[[int], Candidates]) -> bool:
        """Return True if the kernel is correct and faster for each number of rows of a trial."""
        return bool(self.count(kind, partial(prefers_kernel, compared, is_timed=self.is_timed)))

    def rows_trial(
        self,
        compared: Callable[[int], Candidates],
        if_untried: int = 0,
        *,
        times: float = 1.0,
        is_timed: bool,
    ) -> Callable[[], int]:
        """Return a trial of the maximum number of rows for which a kernel is correct and faster; see
        `Budget.most_rows`.
        """
        return partial(
            self._budget.most_rows, compared, is_timed=is_timed, if_untried=if_untried, times=times
        )

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
