"""Queues of helpers: totals of several front ends, which may start again."""

from __future__ import annotations

import re

import pytest

from tenonry_helper_pool.stats import HelperStats
from tenonry_stat_logger_prometheus.catalog import MAX_HELPERS
from tenonry_stat_logger_prometheus.helpers import HelperSeries
from tenonry_stat_logger_prometheus.storage import Storage


@pytest.fixture
def storage():
    return Storage()


def values(storage: Storage, name: str) -> dict[str, float]:
    (found,) = [each for each in storage.read() if each.metric.name == name]
    return {labels[0]: value for labels, value in found.values}


def stats(front_end=0, helper="grammar_check", **numbers) -> HelperStats:
    return HelperStats(helper=helper, front_end=front_end, **numbers)


def test_front_ends_are_added_up(storage):
    series = HelperSeries(storage)
    series.take(stats(1, num_waiting=2, num_jobs=3, busy_s=1.5))
    series.take(stats(2, num_waiting=1, num_jobs=4, busy_s=0.5))
    series.take(stats(1, num_waiting=0, num_running=1, num_jobs=5, busy_s=2.0, num_timeouts=1))
    assert values(storage, "helper_jobs_waiting") == {"grammar_check": 1}
    assert values(storage, "helper_jobs_running") == {"grammar_check": 1}
    assert values(storage, "helper_jobs") == {"grammar_check": 9}
    assert values(storage, "helper_busy_seconds") == {"grammar_check": 2.5}
    assert values(storage, "helper_timeouts") == {"grammar_check": 1}


def test_a_front_end_that_starts_again_takes_nothing_away(storage):
    series = HelperSeries(storage)
    series.take(stats(1, num_waiting=7, num_jobs=3, num_refused=2))
    series.take(stats(1))  # the first report of its successor
    assert values(storage, "helper_jobs_waiting") == {"grammar_check": 0}
    series.take(stats(1, num_jobs=1))
    assert values(storage, "helper_jobs") == {"grammar_check": 4}
    assert values(storage, "helper_refusals") == {"grammar_check": 2}


def test_labels_are_bounded(storage):
    series = HelperSeries(storage)
    for number in range(2 * MAX_HELPERS):
        series.take(stats(helper=f"helper {number}", num_jobs=1))
    found = values(storage, "helper_jobs")
    assert len(found) == MAX_HELPERS + 1
    assert found["other"] == MAX_HELPERS


def test_the_logger_shows_them(make_logger, scrape):
    logger = make_logger()
    logger.record_extra(stats(num_jobs=2, waiting_s=0.25))
    text = logger.render()[0].decode()
    assert 'tenonry:helper_waiting_seconds_total{helper="grammar_check",model_name=' in text


def test_the_cache_of_images_has_names_of_its_own(make_logger):
    """MM-1."""
    logger = make_logger()
    logger.record_extra(stats(helper="image_decode", num_lookups=5, num_hits=2))
    logger.record_extra(stats(helper="grammar_check", num_lookups=9, num_hits=9))
    text = logger.render()[0].decode()
    for prefix in ("tenonry:", "vllm:"):
        for name, value in (("queries", 5), ("hits", 2)):
            assert re.search(
                rf"^{prefix}mm_cache_{name}_total{{[^}}]*}} {value}\.0$", text, re.MULTILINE
            )
    assert 'helper_cache_hits_total{helper="grammar_check"' in text
