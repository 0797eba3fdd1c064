"""The measured figures as one table in Markdown, and the conditions to judge them by. Any process."""

from __future__ import annotations

from collections.abc import Sequence

from tenonry_bench.figures import Spread, table
from tenonry_bench.machine import Machine
from tenonry_bench.models.engines import OURS
from tenonry_bench.models.results import Result
from tenonry_bench.pace import Pace

NOTHING = "–"


def describe(
    results: Sequence[Result],
    engines: dict[str, str],
    notes: Sequence[str],
    machine: Machine,
    after: Pace,
) -> str:
    """`engines`: name to version, tenonry first; `notes`: a line each."""
    names = list(engines)
    peers = [name for name in names if name != OURS]
    header = ["model", "workload", "figure", *names, *(f"over {peer}" for peer in peers)]
    rows = [
        [
            result.model,
            result.workload,
            result.figure,
            *(cell(result.engines.get(name)) for name in names),
            *(cell(result.ratios.get(peer)) for peer in peers),
        ]
        for result in results
    ]
    versions = ", ".join(f"{name} {version}".strip() for name, version in engines.items())
    lines = [
        table(header, rows),
        "",
        "median (min–max) of interleaved runs; 'over': ratio to tenonry per run, above 1 where tenonry is better.",
        f"{versions}",
        f"{machine.cpu}, {machine.usable_cores} cores; {machine.time_utc}, load {machine.load_average:.1f}",
        f"before: {machine.pace}",
        f"after: {after}",
    ]
    return "\n".join([*lines, *notes])


def cell(value: Spread | None) -> str:
    """Three digits that mean something are enough."""
    if value is None:
        return NOTHING
    return (
        value.text(digits(value.median))
        if value.n > 1
        else f"{value.median:,.{digits(value.median)}f}"
    )


def digits(value: float) -> int:
    """Number of decimals."""
    return 0 if value >= 100 else 1 if value >= 10 else 2
