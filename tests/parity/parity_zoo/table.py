"""Reports as text: a line for a terminal, counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parity_zoo.zoo import Report


def line(report: Report) -> str:
    """One report on one line per worker."""
    if report.unbuilt:
        return f"{report.name}: cannot be built: {report.unbuilt}"
    texts = []
    for worker, outcome in report.outcomes.items():
        by = f" by {outcome.worker}" if outcome.worker != worker else ""
        why = f" [{outcome.way}] {outcome.reason}" if outcome.reason else ""
        note = "" if report.is_telling else " (the oracle repeats itself)"
        if not report.agrees_with_itself:
            note += " (generate differs from the model without a cache)"
        texts.append(
            f"{report.name} | {worker} | {outcome.kind}{by}{why}{note} | {report.seconds} s"
        )
    return "\n".join(texts)


def counts(reports: Sequence[Report], worker: str) -> str:
    """Number of types by outcome with a worker."""
    kinds = Counter(
        "cannot be built" if report.unbuilt else report.outcomes[worker].kind for report in reports
    )
    built = len(reports) - kinds["cannot be built"]
    parts = [f"{number} {kind}" for kind, number in sorted(kinds.items())]
    return f"{built} types served or refused: {', '.join(parts)}"
