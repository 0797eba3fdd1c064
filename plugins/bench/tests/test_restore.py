"""K/V restored by a connector, on the demo model: the same prompt computed and restored."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.integration


@pytest.mark.nightly
@pytest.mark.timeout(120)
def test_report(bench):
    words = "--runs 2 --tokens 64 --dtype float32 --device cpu --kv-connector-option size=64MiB"
    report, printed = bench("restore", *words.split())
    assert report["restored"] == 64
    assert report["computed_ms"]["median"] > 0
    assert report["restored_ms"]["median"] > 0
    assert report["speedup"]["min"] <= report["speedup"]["median"] <= report["speedup"]["max"]
    assert "2 prompts of 64 + 1 tokens" in printed
