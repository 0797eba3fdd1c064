from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError
from tenonry.interfaces.stat_logger import StatLoggerContext
from tenonry.stats import FinishedRequestStats, IterationStats, StatRecord
from tenonry_bench.traces import read_trace
from tenonry_stat_logger_jsonl import JsonlOptions, JsonlStatLogger


def make(path: Path, **options: Any) -> JsonlStatLogger:
    chosen = JsonlOptions(path=str(path), **options)
    return JsonlStatLogger(StatLoggerContext(EngineConfig(model="demo"), options=chosen))


def ended(**fields: Any) -> FinishedRequestStats:
    made: dict[str, Any] = {
        "request_id": "r1",
        "finish_reason": "length",
        "num_prompt_tokens": 40,
        "num_generation_tokens": 5,
        "num_cached_tokens": 32,
        "e2e_latency_s": 3.0,
        "ttft_s": 1.0,
        "queued_s": 0.25,
        "decode_s": 2.0,
        "max_tokens": 5,
        "start_time": 1_700_000_000.5,
    }
    return FinishedRequestStats(**made | fields)


def record(*requests: FinishedRequestStats, engine: int = 0) -> StatRecord:
    return StatRecord(
        engine_index=engine, time=1.0, iteration=IterationStats(finished=list(requests))
    )


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_line_of_a_request(tmp_path):
    path = tmp_path / "trace.jsonl"
    logger = make(path)
    logger.record(record(ended(tags={"session": "a", "weight": 2.0}), engine=3))
    assert written(path) == [
        {
            "request_id": "r1",
            "model": "demo",
            "arrival_time": 1_700_000_000.5,
            "prompt_tokens": 40,
            "output_tokens": 5,
            "cached_tokens": 32,
            "max_tokens": 5,
            "n": 1,
            "reason": "length",
            "queued_s": 0.25,
            "ttft_s": 1.0,
            "itl_mean_s": 0.5,
            "e2e_s": 3.0,
            "preemptions": 0,
            "engine": 3,
            "tags": {"session": "a", "weight": 2.0},
        }
    ]
    logger.shutdown()


@pytest.mark.parametrize(
    "fields", [{"num_generation_tokens": 1}, {"num_generation_tokens": 0, "ttft_s": None}, {"n": 2}]
)
def test_no_mean_gap_without_two_tokens_of_one_answer(tmp_path, fields):
    logger = make(tmp_path / "trace.jsonl")
    logger.record(record(ended(**fields)))
    logger.shutdown()
    assert written(tmp_path / "trace.jsonl")[0]["itl_mean_s"] is None


def test_any_text_and_number_gives_a_valid_line(tmp_path):
    logger = make(tmp_path / "trace.jsonl")
    tags = {"line": "a\nb", "half": "\ud800", "nan": math.nan, "far": math.inf}
    logger.record(record(ended(request_id="ü\u2028", tags=tags)))
    logger.shutdown()
    (line,) = (tmp_path / "trace.jsonl").read_bytes().splitlines()
    found = json.loads(line)
    assert found["request_id"] == "ü\u2028"
    assert found["tags"] == {"line": "a\nb", "half": "?"}


def test_rotates_by_size_and_keeps_the_latest(tmp_path):
    path = tmp_path / "trace.jsonl"
    logger = make(path, max_bytes=1000, backups=2)
    for number in range(30):
        logger.record(record(ended(request_id=f"r{number}")))
    logger.shutdown()
    files = [tmp_path / "trace.jsonl.2", tmp_path / "trace.jsonl.1", path]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert all(file.stat().st_size <= 1000 for file in files)
    kept = [int(line["request_id"][1:]) for file in files for line in written(file)]
    assert kept == list(range(30 - len(kept), 30))


def test_appends_to_an_earlier_file(tmp_path):
    for _ in range(2):
        logger = make(tmp_path / "trace.jsonl")
        logger.record(record(ended()))
        logger.shutdown()
    assert len(written(tmp_path / "trace.jsonl")) == 2


def test_file_that_cannot_be_opened_ends_the_start(tmp_path):
    with pytest.raises(ConfigError, match=r"jsonl\.path=.*missing.* cannot be opened \(No such"):
        make(tmp_path / "missing" / "trace.jsonl")


def test_write_error_reaches_the_caller():
    logger = make(Path("/dev/full"))
    for write in (lambda: logger.record(record(ended())), logger.shutdown):
        with pytest.raises(OSError, match="No space left"):
            write()


def test_file_is_a_trace_of_the_benchmark(tmp_path):
    logger = make(tmp_path / "trace.jsonl")
    late, early = ended(start_time=12.5, num_prompt_tokens=7), ended(start_time=10.0)
    logger.record(record(late, early, ended(num_generation_tokens=0)))
    logger.shutdown()
    found = read_trace([str(tmp_path / "trace.jsonl")])
    assert [(each.arrival_time, each.prompt_tokens, each.output_tokens) for each in found] == [
        (10.0, 40, 5),
        (12.5, 7, 5),
    ]
