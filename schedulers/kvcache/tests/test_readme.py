"""The README's scheduler works as printed."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

from tenonry_testkit.harness import HarnessSpec, SchedulerHarness

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_scheduler_runs_requests_to_their_end(tmp_path, monkeypatch, depth):
    code = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)[0]
    (tmp_path / "readme_shortest.py").write_text(code, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("readme_shortest")
    monkeypatch.delitem(sys.modules, "readme_shortest")
    harness = SchedulerHarness(module.ShortestFirst, HarnessSpec(depth=depth, num_blocks=12))
    entries = [
        harness.add([*range(9), 20 + length] * length, max_tokens=6) for length in (2, 1, 2, 3, 1)
    ]
    harness.drain()
    assert all(len(entry.token_ids) > 0 for entry in entries)
    assert sum(entry.num_cached or 0 for entry in entries) > 0
