"""The README's policy works as printed."""

from __future__ import annotations

import re
from pathlib import Path

from tenonry_scheduler_batching.scheduler import BatchingOptions, BatchingScheduler
from tenonry_testkit.harness import HarnessSpec, SchedulerHarness

README = Path(__file__).parents[1] / "README.md"


def test_the_policy_orders_admits_and_chooses_victims(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    file = tmp_path / "short.py"
    file.write_text(code, "utf-8")
    policy = f"{file}:ShortPromptsFirst"
    spec = HarnessSpec(
        num_blocks=10, max_num_batched_tokens=32, config=(("scheduling_policy", policy),)
    )
    harness = SchedulerHarness(BatchingScheduler, spec)
    assert not harness.scheduler.starvation_free
    entries = [
        harness.add(range(20 * i, 20 * i + length), max_tokens=8)
        for i, length in enumerate((12, 4, 8))
    ]
    harness.turn()
    started = [entry.handle for entry in entries if entry.num_cached is not None]
    assert started == [2, 3]  # the shortest, the next; then eight blocks are no longer free
    harness.drain()


def test_every_option_is_in_the_table():
    text = README.read_text("utf-8")
    assert all(f"`{name}=" in text for name in BatchingOptions.model_fields)
