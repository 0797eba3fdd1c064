"""Memory freed by sleep, on the demo model."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.integration


@pytest.mark.timeout(120)
def test_report(bench):
    words = "--runs 2 --dtype float32 --device cpu --max-model-len 128"
    report, printed = bench("sleep", *words.split())
    assert report["same"]
    assert [each["level"] for each in report["levels"]] == [1, 2]
    assert all(each["wake_s"]["median"] > 0 for each in report["levels"])
    assert "tokens identical" in printed
