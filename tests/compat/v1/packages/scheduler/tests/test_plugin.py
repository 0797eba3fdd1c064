"""The conformance suite of schedulers."""

from __future__ import annotations

from tenonry_testkit.scheduler import SchedulerContract


class TestV1Scheduler(SchedulerContract):
    scheduler = "v1_scheduler.plugin:V1Scheduler"
