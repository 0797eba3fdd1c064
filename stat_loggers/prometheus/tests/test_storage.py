"""Histograms against a plain count, and series by label."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenonry_stat_logger_prometheus.catalog import METRICS
from tenonry_stat_logger_prometheus.storage import FOLD_AT, Histogram, Storage

BOUNDS = (0.1, 0.5, 1.0, 10.0)
seconds = st.one_of(st.floats(0, 100), st.sampled_from(BOUNDS))


@given(
    st.lists(st.lists(seconds, max_size=8), max_size=6),
    st.lists(seconds, max_size=8),
    st.booleans(),
)
def test_histogram_equals_plain_count(batches, singles, read_between):
    histogram = Histogram(BOUNDS)
    for batch in batches:
        histogram.observe_many(batch)
        if read_between:
            histogram.read()
    for value in singles:
        histogram.observe(value)
    values = [value for batch in batches for value in batch] + singles
    counts, total = histogram.read()
    assert counts == (*(sum(value <= bound for value in values) for bound in BOUNDS), len(values))
    assert total == pytest.approx(sum(values))


def test_histogram_keeps_a_bounded_number_of_observations():
    histogram = Histogram(BOUNDS)
    for _ in range(3 * FOLD_AT):
        histogram.observe(0.2)
        assert len(histogram._pending) < FOLD_AT
    histogram.observe_many([2.0] * (2 * FOLD_AT))
    assert histogram._pending == []
    assert histogram.read() == (
        (0, 3 * FOLD_AT, 3 * FOLD_AT, 5 * FOLD_AT, 5 * FOLD_AT),
        pytest.approx(4.6 * FOLD_AT),
    )


def test_infinite_observation_counts_only_in_the_last_bucket():
    histogram = Histogram(BOUNDS)
    histogram.observe(math.inf)
    assert histogram.read() == ((0, 0, 0, 0, 1), math.inf)


def test_cell_is_the_same_for_the_same_labels():
    storage = Storage()
    storage.cell("request_success", "0", "stop").value += 2
    storage.cell("request_success", "0", "stop").value += 1
    storage.cell("request_success", "1", "stop").value += 5
    (reading,) = [reading for reading in storage.read() if reading.metric.name == "request_success"]
    assert reading.values == ((("0", "stop"), 3.0), (("1", "stop"), 5.0))


def test_remove_forgets_by_first_labels():
    storage = Storage()
    for engine in ("1", "10"):
        storage.cell("scheduler_extra", engine, "x").value = 1
    storage.remove("scheduler_extra", "1")
    (reading,) = [reading for reading in storage.read() if reading.metric.name == "scheduler_extra"]
    assert reading.values == ((("10", "x"), 1.0),)


def test_read_follows_the_catalog():
    assert [reading.metric for reading in Storage().read()] == list(METRICS)
