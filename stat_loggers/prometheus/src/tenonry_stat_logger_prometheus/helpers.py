"""The queues of front ends' helpers, by helper. Observer thread.

Front ends report totals. A front end that starts again begins at 0, and the sums here go on.
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
}


class HelperSeries:
    """Adds up what front ends report of their helpers, of which `MAX_HELPERS` have a label of their own."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
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
        is_new = stats.num_jobs < before.num_jobs or stats.num_refused < before.num_refused
        for name, field in COUNTERS.items():
            change = getattr(stats, field) - (0 if is_new else getattr(before, field))
            self._storage.cell(name, label).value += change
