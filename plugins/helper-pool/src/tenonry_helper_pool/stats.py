"""The numbers of helpers, as stat loggers receive them: `StatLogger.record_extra`. Made in front ends."""

from __future__ import annotations

import msgspec


class HelperStats(msgspec.Struct, kw_only=True, frozen=True):
    """One kind of helper of one front end, such as its grammar checks. Counts are totals since its start: `num_jobs`
    that ended, in `busy_s` seconds after `waiting_s` in the queue, `num_timeouts` by a limit of time or memory;
    `num_refused` found the queue full, `num_restarted` were long and restarted after short ones. `num_hits` of
    `num_lookups` results were cached.
    """

    helper: str
    front_end: int = 0
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
