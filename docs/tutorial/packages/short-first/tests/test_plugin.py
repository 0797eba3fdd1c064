"""The conformance suite of schedulers, with the policy."""

from __future__ import annotations

from tenonry_testkit.scheduler import SchedulerContract


class TestShortFirst(SchedulerContract):
    scheduler = "batching"
    policy = "short_first.plugin:ShortFirst"
