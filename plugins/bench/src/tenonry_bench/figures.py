"""Statistics of measurements, as the reports hold and print them. Any process; standard library and msgspec only."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec


class Spread(msgspec.Struct, frozen=True):
    """One number measured `n` times: its median, and how far the runs lie apart."""

    median: float
    min: float
    max: float
    n: int = 1

    def text(self, digits: int = 1) -> str:
        """`median (min–max)`."""
        return f"{self.median:,.{digits}f} ({self.min:,.{digits}f}–{self.max:,.{digits}f})"


class Percentiles(msgspec.Struct, frozen=True):
    """Percentiles 50 and 99 of many values, and their number."""

    p50: float
    p99: float
    n: int = 0


def spread(values: Sequence[float]) -> Spread:
    """Median, minimum and maximum of at least one value."""
    return Spread(statistics.median(values), min(values), max(values), len(values))


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the values lie, linear between neighbours; NaN of none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def percentiles(values: Sequence[float], scale: float = 1.0) -> Percentiles:
    """p50 and p99 of the values, each times `scale` (1000 turns seconds into milliseconds)."""
    return Percentiles(
        percentile(values, 0.5) * scale, percentile(values, 0.99) * scale, len(values)
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with columns as wide as their widest cell."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    text = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    ]
    text.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(text)
