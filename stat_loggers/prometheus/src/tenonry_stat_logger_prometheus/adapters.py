"""The requests of each adapter (LoRA) of one engine. Observer thread.

A series exists while its adapter has requests, so that a server with many adapters shows those that matter.
"""

from __future__ import annotations

import time
from collections import Counter

from tenonry_stat_logger_prometheus.catalog import MAX_ADAPTERS, OTHER, PER_ADAPTER
from tenonry_stat_logger_prometheus.storage import Storage

RUNNING, WAITING = PER_ADAPTER
INFO = "lora_requests_info"


class AdapterSeries:
    """Series of an engine's adapters, of which a step has at most `max_loras`."""

    def __init__(self, storage: Storage, engine: str, max_loras: int) -> None:
        self._storage = storage
        self._engine = engine
        self._max_loras = str(max_loras)
        self._numbers: Counter[tuple[str, str]] = Counter()
        self._set_info()

    def take(self, extra: dict[str, float]) -> dict[str, float]:
        """Take in the numbers of adapters; returns the others."""
        found: Counter[tuple[str, str]] = Counter()
        others = {}
        for name, value in extra.items():
            metric, _, adapter = name.partition(":")
            if metric not in PER_ADAPTER:
                others[name] = value
                continue
            label = (
                adapter if len(found) < 2 * MAX_ADAPTERS or (metric, adapter) in found else OTHER
            )
            found[metric, label] += value  # type: ignore[assignment] - counts, sent as floats
        if found != self._numbers or found.keys() != self._numbers.keys():
            self._set(found)
        return others

    def _set(self, found: Counter[tuple[str, str]]) -> None:
        former = self._names(RUNNING), self._names(WAITING)
        for metric, label in self._numbers.keys() - found.keys():
            self._storage.remove(metric, self._engine, label)
        self._numbers = found
        for (metric, label), value in found.items():
            self._storage.cell(metric, self._engine, label).value = value
        if (self._names(RUNNING), self._names(WAITING)) != former:
            self._set_info()

    def _set_info(self) -> None:
        self._storage.remove(INFO, self._engine)
        labels = (self._max_loras, self._names(WAITING), self._names(RUNNING))
        self._storage.cell(INFO, self._engine, *labels).value = time.time()

    def _names(self, metric: str) -> str:
        """Adapters that have such requests."""
        return ",".join(
            sorted(name for (kind, name), n in self._numbers.items() if kind == metric and n)
        )
