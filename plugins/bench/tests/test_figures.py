from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenonry_bench.figures import percentile, percentiles, spread, table

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50)


@given(VALUES)
def test_percentile_lies_between_the_extremes_and_meets_the_median(values):
    assert percentile(values, 0.0) == min(values)
    assert percentile(values, 1.0) == max(values)
    assert percentile(values, 0.5) == pytest.approx(statistics.median(values), abs=1e-6)


@given(VALUES, st.floats(0, 1), st.floats(0, 1))
def test_percentile_rises_with_the_share(values, one, other):
    low, high = sorted((one, other))
    assert percentile(values, low) <= percentile(values, high) + 1e-6


def test_percentile_interpolates_between_neighbours():
    assert percentile([4.0, 0.0, 2.0, 6.0], 0.25) == pytest.approx(1.5)


def test_percentile_of_nothing_is_no_number():
    assert math.isnan(percentile([], 0.5))


def test_percentiles_are_scaled():
    found = percentiles([0.001] * 99 + [1.0], 1e3)
    assert found.p50 == 1.0
    assert found.n == 100
    assert 1.0 < found.p99 < 1000.0


def test_spread_holds_median_and_extremes():
    found = spread([3.0, 1.0, 2.0])
    assert found.median == 2.0
    assert found.min == 1.0
    assert found.max == 3.0
    assert found.n == 3
    assert found.text(1) == "2.0 (1.0–3.0)"


def test_table_aligns_its_columns():
    lines = table(("a", "long"), [("longer", "b")]).splitlines()
    assert lines == ["| a      | long |", "|--------|------|", "| longer | b    |"]
