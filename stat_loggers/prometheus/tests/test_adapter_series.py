"""The requests of each adapter: series that come and go with them, and never too many."""

from __future__ import annotations

import pytest

from tenonry.config import EngineConfig
from tenonry.interfaces.stat_logger import StatLoggerContext
from tenonry.stats import SchedulerStats, StatRecord
from tenonry_stat_logger_prometheus.catalog import MAX_ADAPTERS
from tenonry_stat_logger_prometheus.logger import PrometheusOptions, PrometheusStatLogger

RUNNING, WAITING = "tenonry:lora_requests_running", "tenonry:lora_requests_waiting"
INFO = "tenonry:lora_requests_info"


@pytest.fixture
def logger():
    config = EngineConfig(model="demo", max_loras=4)
    made = PrometheusStatLogger(StatLoggerContext(config, options=PrometheusOptions()))
    yield made
    made.shutdown()


def report(logger, engine=0, *, more=None, **adapters):
    """`adapters`: requests of each that run and that wait."""
    extra = dict(more or {})
    for name, (running, waiting) in adapters.items():
        extra |= {
            f"lora_requests_running:{name}": running,
            f"lora_requests_waiting:{name}": waiting,
        }
    logger.record(StatRecord(engine_index=engine, time=1.0, scheduler=SchedulerStats(extra=extra)))


def test_series_come_and_go_with_the_requests(logger, scrape):
    report(logger, a=(2, 1), b=(0, 3))
    report(logger, 1, a=(5, 0))
    found = scrape(logger)
    assert found.value(RUNNING, engine="0", lora_name="a") == 2
    assert found.value(WAITING, engine="0", lora_name="b") == 3
    assert found.value(RUNNING, engine="1", lora_name="a") == 5
    report(logger, b=(1, 0))
    found = scrape(logger)
    assert found.value(RUNNING, engine="0", lora_name="b") == 1
    names = {(each["engine"], each["lora_name"]) for each in found.labels(RUNNING)}
    assert names == {("0", "b"), ("1", "a")}
    report(logger)
    assert {each["engine"] for each in scrape(logger).labels(RUNNING)} == {"1"}


def test_one_series_names_the_adapters_under_vllms_labels(logger, scrape):
    report(logger)
    (empty,) = scrape(logger).labels(INFO)
    assert (empty["max_lora"], empty.get("running_lora_adapters", "")) == ("4", "")
    report(logger, b=(1, 0), a=(2, 4))
    found = scrape(logger)
    (labels,) = found.labels("vllm:lora_requests_info")
    assert (labels["running_lora_adapters"], labels["waiting_lora_adapters"]) == ("a,b", "a")
    since = found.value(INFO)
    report(logger, b=(7, 0), a=(1, 1))  # other numbers, the same names
    assert scrape(logger).value(INFO) == since > 1e9


def test_further_adapters_are_counted_together(logger, scrape):
    report(logger, **{f"name{number}": (1, 2) for number in range(MAX_ADAPTERS + 6)})
    found = scrape(logger)
    assert len(found.labels(RUNNING)) == MAX_ADAPTERS + 1
    assert found.value(RUNNING, lora_name="other") == 6
    assert found.value(WAITING, lora_name="other") == 12


def test_other_numbers_of_the_scheduler_stay(logger, scrape):
    report(logger, more={"depth": 3.0}, a=(1, 0))
    found = scrape(logger)
    assert found.value("tenonry:scheduler_extra", name="depth") == 3
    assert len(found.labels("tenonry:scheduler_extra")) == 1


def test_an_engine_without_adapters_has_no_such_series(make_logger, scrape):
    logger = make_logger()
    report(logger)
    assert not scrape(logger).labels(INFO)
