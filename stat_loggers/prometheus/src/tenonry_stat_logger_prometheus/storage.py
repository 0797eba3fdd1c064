"""Storage of the numbers between two scrapes: cells and histograms by label values. Written by the observer thread and
read by the thread that answers a scrape, one at a time: their owner holds a lock around both.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from tenonry_stat_logger_prometheus.catalog import BY_NAME, METRICS, MetricDef

FOLD_AT = 2048  # observations kept back before they are sorted into buckets

Labels = tuple[str, ...]  # values, in the order of the metric's labels, without `model_name`


class Cell:
    """The value of one counter or gauge."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0


class Histogram:
    """Counts per bucket. Observations wait in a list, so that a step's worth of them costs one `extend`."""

    __slots__ = ("_bounds", "_cumulative", "_pending", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._cumulative = [0] * (len(bounds) + 1)
        self._pending: list[float] = []
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._pending.append(value)
        if len(self._pending) >= FOLD_AT:
            self._fold()

    def observe_many(self, values: Iterable[float]) -> None:
        self._pending.extend(values)
        if len(self._pending) >= FOLD_AT:
            self._fold()

    def read(self) -> tuple[tuple[int, ...], float]:
        """Return the cumulative count for each bound and for +Inf, and the sum of all observations."""
        self._fold()
        return tuple(self._cumulative), self._sum

    def _fold(self) -> None:
        if not self._pending:
            return
        values = sorted(self._pending)
        for index, bound in enumerate(self._bounds):
            self._cumulative[index] += bisect_right(values, bound)
        self._cumulative[-1] += len(values)
        self._sum += sum(values)
        self._pending.clear()


class Reading(NamedTuple):
    """One metric at one instant: a value for each series, or the cumulative counts and the sum of a histogram."""

    metric: MetricDef
    values: tuple[tuple[Labels, float], ...] = ()
    histograms: tuple[tuple[Labels, tuple[int, ...], float], ...] = ()


class Storage:
    """All series of all metrics. `cell` and `histogram` create a series on first use."""

    def __init__(self) -> None:
        self._cells: dict[str, dict[Labels, Cell]] = {name: {} for name in BY_NAME}
        self._histograms: dict[str, dict[Labels, Histogram]] = {name: {} for name in BY_NAME}

    def cell(self, name: str, *labels: str) -> Cell:
        return self._cells[name].setdefault(labels, Cell())

    def histogram(self, name: str, *labels: str) -> Histogram:
        found = self._histograms[name].get(labels)
        if found is None:
            found = self._histograms[name][labels] = Histogram(BY_NAME[name].buckets)
        return found

    def remove(self, name: str, *first: str) -> None:
        """Forget the series whose label values begin with `first`; all of them without any."""
        cells = self._cells[name]
        for labels in [labels for labels in cells if labels[: len(first)] == first]:
            del cells[labels]

    def read(self) -> list[Reading]:
        """Copy everything out, in the order of the catalog."""
        return [
            Reading(
                metric,
                tuple((labels, cell.value) for labels, cell in self._cells[metric.name].items()),
                tuple(
                    (labels, *series.read())
                    for labels, series in self._histograms[metric.name].items()
                ),
            )
            for metric in METRICS
        ]
