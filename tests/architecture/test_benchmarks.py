"""Chart and table of the benchmarks are those of the newest results."""

from __future__ import annotations

import sys

import pytest
from house import ROOT

sys.path.append(str(ROOT / "docs" / "drawings"))
import benchmarks

FASTER = {"machine": "A", "model": "m", "workload": "w", "figure": "tok/s"}
RESULTS = {
    "date": "1 May",
    "result": [
        FASTER | {"tenonry": [2000, 1900, 2100], "vllm": [1000]},
        FASTER | {"figure": "first token, s", "tenonry": [4.0], "llama-cpp": [1.0], "note": "once"},
    ],
}


def test_page_and_chart_are_up_to_date():
    outdated = [
        file for file, content in benchmarks.made().items()
        if file.read_text(encoding="utf-8") != content
    ]  # fmt: skip
    assert outdated == [], "run: python docs/drawings/benchmarks.py"


def test_table_shows_ranges_and_ratios():
    assert benchmarks.table(RESULTS).splitlines()[2:] == [
        "| A | m | w | tok/s | 2 000 (1 900–2 100) | 1 000 | – | 2.00 | – |",
        "| A | m | w | first token, s (once) | 4.0 | – | 1.0 | – | 0.25 |",
    ]


@pytest.mark.parametrize(("times", "x"), [(1, 500), (32, 710), (1 / 32, 290), (1000, 710)])
def test_axis_is_logarithmic_and_bounded(times: float, x: int):
    assert round(benchmarks.place(times)) == x


def test_chart_has_one_row_per_workload():
    assert len(benchmarks.charted(RESULTS["result"])) == 1
    assert benchmarks.draw(RESULTS).count("A · m · w") == 1
