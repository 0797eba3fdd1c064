"""The conformance suite of schedulers, with the policy."""

from __future__ import annotations

from tenonry_testkit.scheduler import SchedulerContract


class TestV1SchedulingPolicy(SchedulerContract):
    scheduler = "batching"
    policy = "v1_scheduling_policy.plugin:V1SchedulingPolicy"
