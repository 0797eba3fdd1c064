"""Cost of grammars, on the demo model: each figure with its counterpart."""

from __future__ import annotations

import pytest

from tenonry_bench.structured import time_per_token

PAIRS = {"grown_ms": ("gap_ms", "gap_compiling_ms"), "later_ms": ("ttft_ms", "ttft_schema_ms")}


@pytest.mark.nightly
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


def test_time_per_token_counts_the_tokens_of_an_output():
    one_at_a_time = [0.0, 1.0, 2.0, 3.0]
    in_pairs = [0.0, 0.0, 2.0, 2.0, 4.0, 4.0]
    assert time_per_token(one_at_a_time) == time_per_token(in_pairs) == 1.0


def test_time_per_token_of_a_single_output_is_zero():
    assert time_per_token([5.0, 5.0]) == 0.0
