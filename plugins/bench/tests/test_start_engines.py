from __future__ import annotations

import psutil
import pytest

from tenonry_bench.start_engines import summarise


@pytest.mark.nightly
@pytest.mark.integration
def test_report(bench, model_folder):
    report, printed = bench(
        "start-engines", "--sizes", "1,2", "--runs", "1", "--model", model_folder
    )
    one, two = report["results"]
    assert one["engines"] == 1
    assert two["engines"] == 2
    assert one["ready_s"]["min"] > 0
    assert one["ratio"]["median"] == 1
    assert two["ratio"]["median"] == pytest.approx(
        two["ready_s"]["median"] / one["ready_s"]["median"]
    )
    assert report["settings"]["worker"]["name"] == "null"
    assert "2 engines" in printed
    assert [one["engines"] for one in report["imports"]] == [1, 2]
    assert report["imports"][1]["ready_s"]["min"] > 0
    assert "2 imports alone" in printed
    assert psutil.Process().children() == []


def test_ratios_are_taken_run_by_run():
    one, four = summarise([1, 4], [{1: 1.0, 4: 2.0}, {4: 12.0, 1: 4.0}])
    assert one.ratio.min == 1
    assert one.ratio.max == 1
    assert four.ratio.min == 2
    assert four.ratio.max == 3
    assert four.engines == 4
    assert four.ready_s.max == 12
