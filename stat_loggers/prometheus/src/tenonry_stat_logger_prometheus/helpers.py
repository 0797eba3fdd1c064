"""The queues of front ends' helpers, by helper. Observer thread.

Front ends report totals. A restarted front end begins at 0, and the sums here continue.
"""

from __future__ import annotations

from tenonry_helper_pool.stats import HelperStats
from tenonry_stat_logger_prometheus.catalog import MAX_HELPERS, OTHER
from tenonry_stat_logger_prometheus.storage import Storage

GAUGES = {"helper_jobs_waiting": "num_waiting", "helper_jobs_running": "num_running"}
COUNTERS = {
    "helper_jobs": "num_jobs",
    "helper_timeouts": "num_timeouts",
    "helper_refusals": "num_refused",
    "helper_restarts": "num_restarted",
    "helper_busy_seconds": "busy_s",
    "helper_waiting_seconds": "waiting_s",
    "helper_cache_queries": "num_lookups",
    "helper_cache_hits": "num_hits",
}
IMAGES = "image_decode"
IMAGE_COUNTERS = {"mm_cache_queries": "num_lookups", "mm_cache_hits": "num_hits"}


class HelperSeries:
    """Sums the reports of front ends about their helpers, of which `MAX_HELPERS` have a separate label."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        for name in IMAGE_COUNTERS:
            storage.cell(name)
        self._latest: dict[tuple[str, int], HelperStats] = {}
        self._labels: set[str] = set()

    def take(self, stats: HelperStats) -> None:
        """Take in the latest numbers of one helper of one front end."""
        if len(self._labels) < MAX_HELPERS:
            self._labels.add(stats.helper)
        label = stats.helper if stats.helper in self._labels else OTHER
        key = (stats.helper, stats.front_end)
        before = self._latest.get(key, HelperStats(helper=stats.helper))
        self._latest[key] = stats
        for name, field in GAUGES.items():
            change = getattr(stats, field) - getattr(before, field)
            self._storage.cell(name, label).value += change
        if any(getattr(stats, field) < getattr(before, field) for field in COUNTERS.values()):
            before = HelperStats(helper=stats.helper)  # it started again
        for name, field in COUNTERS.items():
            change = getattr(stats, field) - getattr(before, field)
            self._storage.cell(name, label).value += change
        for name, field in IMAGE_COUNTERS.items() if stats.helper == IMAGES else ():
            self._storage.cell(name).value += getattr(stats, field) - getattr(before, field)
