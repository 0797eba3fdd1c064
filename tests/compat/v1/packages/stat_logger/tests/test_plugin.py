"""The conformance suite of stat loggers, and a test with an engine of fakes."""

from __future__ import annotations

from tenonry.config import EngineConfig
from tenonry.interfaces.stat_logger import StatLoggerContext
from tenonry.stats import IterationStats, StatRecord
from tenonry_testkit.stat_logger import StatLoggerContract

from v1_stat_logger.plugin import V1StatLogger


class TestV1StatLogger(StatLoggerContract):
    stat_logger = "v1_stat_logger.plugin:V1StatLogger"


def test_it_counts_generated_tokens() -> None:
    stat_logger = V1StatLogger(StatLoggerContext(EngineConfig(model="fake")))
    for _ in range(3):
        iteration = IterationStats(num_generation_tokens=4)
        stat_logger.record(StatRecord(engine_index=0, time=0.0, iteration=iteration))
    assert stat_logger.num_tokens == 12
