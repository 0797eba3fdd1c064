"""The conformance suite of stat loggers, and the lines of a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from tenonry.config import EngineConfig
from tenonry.errors import ConfigError
from tenonry.interfaces.stat_logger import StatLoggerContext
from tenonry.stats import FinishedRequestStats, IterationStats, StatRecord
from tenonry_testkit.stat_logger import StatLoggerContract

from request_ends.plugin import RequestEnds, RequestEndsOptions


class TestRequestEnds(StatLoggerContract):
    stat_logger = "request_ends.plugin:RequestEnds"


def open_logger(path: Path) -> RequestEnds:
    options = RequestEndsOptions(path=path)
    return RequestEnds(StatLoggerContext(EngineConfig(model="fake"), options=options))


def test_it_appends_a_line_per_finished_request(tmp_path: Path) -> None:
    path = tmp_path / "ends.log"
    for name in ("a", "b"):
        stat_logger = open_logger(path)
        end = FinishedRequestStats(
            request_id=name, finish_reason="length", num_prompt_tokens=3, num_generation_tokens=4
        )
        iteration = IterationStats(finished=[end])
        stat_logger.record(StatRecord(engine_index=0, time=0.0, iteration=iteration))
        stat_logger.shutdown()
    assert path.read_text("utf-8") == "a: length, 4 tokens\nb: length, 4 tokens\n"


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"path=.*none.*writable folder"):
        open_logger(tmp_path / "none" / "ends.log")
