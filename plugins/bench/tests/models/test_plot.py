from __future__ import annotations

import xml.etree.ElementTree as ET

from tenonry_bench.figures import spread
from tenonry_bench.models.plot import LONGEST, draw, share
from tenonry_bench.models.results import Result

SVG = "{http://www.w3.org/2000/svg}"


def result(*, more_is_better: bool) -> Result:
    engines = {"tenonry": spread([10.0, 12.0, 11.0]), "a<b": spread([22.0])}
    return Result(
        model="tiny", workload="W1", figure="tok/s", more_is_better=more_is_better,
        engines=engines, ratios={},
    )  # fmt: skip


def test_best_engine_has_the_longest_bar():
    assert share(result(more_is_better=True), "a<b") == 1.0
    assert share(result(more_is_better=True), "tenonry") == 0.5
    assert share(result(more_is_better=False), "tenonry") == 1.0
    assert share(result(more_is_better=False), "a<b") == 0.5


def test_picture_is_xml_with_a_bar_for_every_value():
    both = [result(more_is_better=True), result(more_is_better=False)]
    root = ET.fromstring(draw(both, ["tenonry", "a<b"]))
    bars = [float(each.get("width", "0")) for each in root.iter(f"{SVG}rect")]
    assert bars.count(LONGEST) == 2
    assert bars.count(LONGEST / 2) == 2
    words = [each.text for each in root.iter(f"{SVG}text")]
    assert "tiny W1: tok/s" in words
    assert "a<b" in words
