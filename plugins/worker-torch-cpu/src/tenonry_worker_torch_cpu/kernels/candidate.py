"""Places of a model that may hold a step kernel. Worker process."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenonry_worker_torch.changes import Changes


class Trial(Enum):
    """Comparison of a kernel with our own operations."""

    SIZES = "correct and faster for each number of rows of a trial"
    ONCE = "correct and not slower, for any number of rows"
    ROWS = "correct and faster up to a number of rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A place in a model, the parts of its kernel, and the trial of that kernel.

    `kind` begins with the name of the part, and is equal for places that differ only in their weights, of which one is
    tried. `parts`: None if the place has no known form. `sample`: parts of the kernel that is tried, if not `parts`
    itself. `compared` returns the functions to compare with a kernel, of a number of rows unless the trial is `ONCE`.
    `assign` receives the undo stack, the kernel, and its maximum number of rows. `reports_refusal`: count the place as
    left to torch if it has no kernel. `rows_name`: report the number of rows under this name. `if_untried`: see
    `Budget.most_rows`. `times`: time limit for one row, in times of built-in operations; above 1 if larger kernels need
    this one.
    """

    kind: tuple[object, ...]
    parts: Any
    trial: Trial
    compared: Callable[[Any], Callable[..., Any]]
    assign: Callable[[Changes, Any, int], object]
    sample: Any = None
    reports_refusal: bool = True
    rows_name: str | None = None
    if_untried: int = 0
    times: float = 1.0

    @property
    def part(self) -> str:
        """Name of the part in reports."""
        return str(self.kind[0])


def setting(
    owner: Any, place: str, made: Callable[[Any], object] | None = None
) -> Callable[[Changes, Any, int], None]:
    """Return a function that assigns a kernel to an attribute; `made` wraps the kernel first."""

    def assign(changes: Changes, kernel: Any, _most: int) -> None:
        changes.set(owner, place, kernel if made is None else made(kernel))

    return assign
