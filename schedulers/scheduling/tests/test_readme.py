"""The README's scheduler works as printed, and the README names the exports of the package."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

import tenonry_scheduling
from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.spec import HarnessSpec

README = Path(__file__).parents[1] / "README.md"


@pytest.fixture
def scheduler_class(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    (tmp_path / "readme_fair_shares.py").write_text(code, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("readme_fair_shares")
    monkeypatch.delitem(sys.modules, "readme_fair_shares")
    return module.FairShares


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_scheduler_runs_two_requests_of_a_tenant_at_a_time(scheduler_class, depth):
    harness = SchedulerHarness(scheduler_class, HarnessSpec(depth=depth, num_blocks=40))
    tenants = ("a", "a", "a", "b")
    entries = [harness.add(range(5), max_tokens=4, tags={"tenant": name}) for name in tenants]
    harness.turn()
    started = [entry for entry in entries if entry.started_at is not None]
    assert started == [entries[0], entries[1], entries[3]]
    harness.drain()
    assert harness.scheduler.running.total() == 0


def test_every_exported_name_is_in_the_readme():
    text = README.read_text("utf-8")
    missing = [name for name in tenonry_scheduling.__all__ if f"`{name}`" not in text]
    assert missing == []
