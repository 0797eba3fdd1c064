"""Conformance suite of schedulers for `batching`, with each of its policies and with restrictive options.

Classes instead of entry-point names: a suite builds hundreds of engines, and finding a name reads the metadata of every
installed distribution. The search is wide with one policy; the others and the options run fewer examples, as they only
change the order and the shares of requests that the same code schedules.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from tenonry.plugin.manager import resolve_point
from tenonry_scheduler_batching import SCHEDULING_POLICIES
from tenonry_scheduler_batching.scheduler import BatchingScheduler
from tenonry_testkit.scheduler import SchedulerContract
from tenonry_testkit.targets import resolve_target

POLICIES = "tenonry_scheduler_batching.policies"


class TestFcfs(SchedulerContract):
    scheduler = BatchingScheduler
    policy = f"{POLICIES}:FcfsPolicy"
    caches_prefixes = True
    is_continuous = True
    effort = 0.2


@pytest.mark.nightly
class TestPriority(SchedulerContract):
    scheduler = BatchingScheduler
    policy = f"{POLICIES}:PriorityPolicy"
    is_continuous = True
    effort = 0.1


@pytest.mark.nightly
class TestShortFirst(SchedulerContract):
    """The policy of the tutorial, whose order combines long prompts and their cached prefixes differently.

    As the tutorial runs it: at full effort.
    """

    scheduler = BatchingScheduler
    policy = f"{Path(__file__).with_name('short_first.py')}:ShortFirst"


@pytest.mark.slow
class TestSmallShares(SchedulerContract):
    scheduler = BatchingScheduler
    policy = f"{POLICIES}:FcfsPolicy"
    options: ClassVar = {
        "long_prefill_token_threshold": 3, "watermark": 0.3, "state_snapshot_interval": 1,
    }  # fmt: skip
    caches_prefixes = True
    effort = 0.1


def test_names_lead_to_the_same_classes():
    assert resolve_target("scheduler", "batching")[0] is BatchingScheduler
    for name, cls in (("fcfs", "FcfsPolicy"), ("priority", "PriorityPolicy")):
        assert resolve_point(SCHEDULING_POLICIES, name)[0].__name__ == cls
