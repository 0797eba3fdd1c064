"""Writes the table of choose-a-policy.md: waiting times with each scheduling policy. `--check` compares.

The scheduler `batching` and the policies are the real ones. The worker is the testkit's, with 8 rows and steps of 20 ms
by a virtual clock, so that the table is the same on every machine.
"""

from __future__ import annotations

import random
import statistics
import sys
from pathlib import Path
from typing import Any

from tenonry_scheduler_batching.scheduler import BatchingScheduler
from tenonry_testkit.harness import HarnessSpec, SchedulerHarness
from tenonry_testkit.ledger import Entry

PAGE = Path(__file__).with_name("choose-a-policy.md")
START, END = "<!-- table: policy_table.py -->\n", "<!-- end -->"
POLICIES: dict[str, dict[str, Any]] = {
    "fcfs": {},
    "priority": {},
    "shortest-first": {"tokens_per_second": 10},
    "fair-share": {},
    "deadline": {},
}
STEP_S = 0.02
# Tenant: times of arrival, tokens of prompt and output, priority, seconds to the deadline.
TRACE: dict[str, tuple[list[float], int, int, int, float]] = {
    "batch": ([0.0] * 120, 40, 40, 9, 600.0),
    "chat": ([0.25 * i for i in range(80)], 8, 12, 0, 1.0),
    "report": ([1.0 + 2.0 * i for i in range(10)], 60, 60, 1, 10.0),
}


def waits(policy: str, options: dict[str, Any]) -> dict[str, list[float]]:
    """Seconds from arrival to the first step of each request, by tenant."""
    choice = {"name": policy, "options": options}
    spec = HarnessSpec(
        max_num_seqs=8,
        max_num_batched_tokens=128,
        max_model_len=128,
        num_blocks=512,
        enable_prefix_caching=False,
        config=(("scheduling_policy", choice),),
    )
    harness = SchedulerHarness(BatchingScheduler, spec)
    draw = random.Random(0)  # noqa: S311 - no secrets
    start = harness.clock()
    arrivals = sorted(
        (start + time, tenant) for tenant, (times, *_) in TRACE.items() for time in times
    )
    entries: list[tuple[str, float, Entry]] = []
    while arrivals or harness.scheduler.has_requests():
        while arrivals and arrivals[0][0] <= harness.clock():
            time, tenant = arrivals.pop(0)
            _, prompt, output, priority, deadline = TRACE[tenant]
            tokens = [draw.randrange(1, 60) for _ in range(prompt)]
            tags = {"tenant": tenant, "deadline": deadline}
            entry = harness.add(tokens, output, priority=priority, tags=tags)
            entries.append((tenant, time, entry))
        harness.turn()
        harness.clock.advance(STEP_S)
    found: dict[str, list[float]] = {tenant: [] for tenant in TRACE}
    for tenant, time, entry in entries:
        found[tenant].append((entry.started_at or time) - time)
    return found


def table() -> str:
    """The table as text."""
    lines = [
        "| policy | " + " | ".join(f"`{tenant}`" for tenant in TRACE) + " |",
        "|---|---|---|---|",
    ]
    for policy, options in POLICIES.items():
        cells = []
        for times in waits(policy, options).values():
            worst = statistics.quantiles(times, n=100)[98]
            cells.append(f"{statistics.fmean(times):.1f} / {worst:.1f} s")
        lines.append(f"| `{policy}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the table, or compare it; returns the exit status."""
    before, rest = PAGE.read_text("utf-8").split(START)
    old, after = rest.split(END)
    new = table()
    if "--check" in sys.argv:
        return int(old != new)
    PAGE.write_text(before + START + new + END + after, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
