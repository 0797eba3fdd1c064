"""What grammars cost, on the demo model: each figure beside its counterpart."""

from __future__ import annotations

import pytest

PAIRS = {
    "grown_ms": ("gap_ms", "gap_compiling_ms"),
    "later_ms": ("ttft_ms", "ttft_schema_ms"),
}


@pytest.mark.timeout(120)
def test_report(bench):
    words = "--runs 1 --streams 2 --compilations 2 --worst-properties 40 --properties 5"
    report, printed = bench("structured", *words.split(), "--dtype", "float32", "--device", "cpu")
    for difference, (before, after) in PAIRS.items():
        found = report[after]["median"] - report[before]["median"]
        assert report[difference]["median"] == pytest.approx(found)
    ratio = report["tpot_schema_ms"]["median"] / report["tpot_ms"]["median"]
    assert report["tpot_ratio"]["median"] == pytest.approx(ratio)
    assert report["compiled_s"]["median"] > 0
    assert "schemas of 40 properties" in printed
