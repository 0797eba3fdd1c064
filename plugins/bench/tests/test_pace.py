from __future__ import annotations

import pytest

from tenonry_bench.pace import Pace, measure_pace

pytestmark = pytest.mark.integration


def test_the_pace_is_measured_and_said_in_words():
    pace = measure_pace()
    assert 0 < pace.loop_ms < 60_000
    assert 0 < pace.round_trip_us < 1e6
    assert str(Pace(loop_ms=51.2, round_trip_us=40.04)) == (
        "machine: a Python loop of a million turns took 51 ms, a byte to another process and back 40 µs"
    )
