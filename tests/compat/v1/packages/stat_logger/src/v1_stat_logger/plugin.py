"""Stat logger `v1-stat-logger`: a line per finished request. Front end, on a thread of its own."""

from __future__ import annotations

import logging

from tenonry.interfaces.stat_logger import StatLogger, StatLoggerContext
from tenonry.stats import StatRecord

logger = logging.getLogger("tenonry.v1_stat_logger")


class V1StatLogger(StatLogger):
    """Logs how each request ended, and counts generated tokens."""

    interface_version = 1

    def __init__(self, context: StatLoggerContext) -> None:
        super().__init__(context)
        self.num_tokens = 0

    def record(self, record: StatRecord) -> None:
        if record.iteration is None:
            return
        self.num_tokens += record.iteration.num_generation_tokens
        for request in record.iteration.finished:
            logger.info(
                "%s: %s after %d tokens",
                request.request_id,
                request.finish_reason,
                request.num_generation_tokens,
            )
