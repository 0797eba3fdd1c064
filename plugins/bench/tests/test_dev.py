from __future__ import annotations

import psutil
import pytest


@pytest.mark.nightly
@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_stream_is_lost_by_saves(bench):
    """A server, `tenonry plugins dev`, and streams across two swaps."""
    report, printed = bench("dev", "--streams", 64, "--output-len", 50, "--runs", 2)
    assert report["lost"] == {}
    assert report["completed"] >= 64
    assert 0 < report["verdict_s"]["min"] < report["swapped_s"]["min"]
    assert report["swapped_s"]["n"] == 2
    assert "streams lost         0" in printed
    assert psutil.Process().children() == []
