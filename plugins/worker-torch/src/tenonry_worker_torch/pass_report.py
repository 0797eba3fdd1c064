"""Report of the passes of a model: one line, and one table. Worker process."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Outcome(Enum):
    """State of a pass after the model was loaded."""

    USED = "used"
    NOT_USED = "not used"
    DIFFERS = "differs"
    FAILED = "failed"


@dataclass(slots=True)
class PassResult:
    """Outcome of one pass. `text`: its change, or the reason against it."""

    name: str
    outcome: Outcome = Outcome.NOT_USED
    text: str = ""
    seconds: float = 0.0


@dataclass(slots=True)
class PassReport:
    """Results of all passes, in order."""

    results: list[PassResult] = field(default_factory=list)

    @property
    def used(self) -> list[str]:
        """Names of the passes in use."""
        return [each.name for each in self.results if each.outcome is Outcome.USED]

    def __getitem__(self, name: str) -> PassResult:
        """Result of a pass. Raises KeyError."""
        for each in self.results:
            if each.name == name:
                return each
        raise KeyError(name)

    @property
    def line(self) -> str:
        """Active passes, and undone ones."""
        undone = [
            f"{each.name} ({each.text})"
            for each in self.results
            if each.outcome in {Outcome.DIFFERS, Outcome.FAILED}
        ]
        text = ", ".join(self.used) or "none"
        return f"{text}; undone: {', '.join(undone)}" if undone else text

    @property
    def table(self) -> str:
        """One line per pass."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        width = max((len(each.name) for each in self.results), default=0)
        for each in self.results:
            outcome = each.outcome.value
            yield f"{each.name:{width}}  {outcome:8}  {each.seconds:6.3f} s  {each.text}"
