"""The numbers of one kind of helper, for stat loggers. Front end; its owner holds a lock."""

from __future__ import annotations

import msgspec

from tenonry_helper_pool.stats import HelperStats


class HelperCounts(msgspec.Struct):
    """Counts since the start; `HelperStats` documents them."""

    helper: str
    num_waiting: int = 0
    num_running: int = 0
    num_jobs: int = 0
    num_timeouts: int = 0
    num_refused: int = 0
    num_restarted: int = 0
    num_lookups: int = 0
    num_hits: int = 0
    busy_s: float = 0.0
    waiting_s: float = 0.0

    def snapshot(self) -> HelperStats:
        """A copy to report."""
        return HelperStats(**msgspec.structs.asdict(self))
