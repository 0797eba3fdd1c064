"""Table of a measurement, and what is below its bounds. Any process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from suite_strength.corpus import KindOutcome
from tenonry_testkit.suites import SUITES

if TYPE_CHECKING:
    from suite_strength.mutation import Killing

MIN_KILLED = 0.95
HEADER = ("kind", "suite", "broken caught", "correct accepted", "mutants killed")


def table(kinds: Mapping[str, KindOutcome], killing: Killing | None) -> list[str]:
    """Lines, one for each kind; the mutants are those of schedulers."""
    rows = [HEADER]
    names = list(kinds) or ["scheduler"]
    for kind in sorted(names):
        outcome = kinds.get(kind, KindOutcome())
        killed = "-"
        if kind == "scheduler" and killing is not None:
            killed = f"{len(killing.killed)} + {len(killing.slow)} stopped/{killing.num_tried}"
        rows.append(
            (kind, SUITES[kind].name, _share(outcome.broken), _share(outcome.correct), killed)
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _share(cases: Mapping[str, bool]) -> str:
    return f"{sum(cases.values())}/{len(cases)}" if cases else "-"


def problems(kinds: Mapping[str, KindOutcome], killing: Killing | None) -> list[str]:
    """One line for each case that went wrong, each kind with too few, and each mutant that survived below the bound."""
    found = []
    for kind, outcome in kinds.items():
        lacks = outcome.shortfall(kind)
        found += [f"{kind}: {each}" for each in [*([lacks] if lacks else []), *outcome.wrong]]
    if killing is not None and killing.share < MIN_KILLED:
        found.append(f"mutants: {killing.share:.1%} killed, at least {MIN_KILLED:.0%} are needed")
        found += [f"survives: {subject}" for subject in killing.survivors]
    return found
