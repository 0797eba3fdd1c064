"""The conformance suite of schedulers over `static`."""

from __future__ import annotations

import pytest

from tenonry_scheduler_static import StaticScheduler
from tenonry_testkit.scheduler import SchedulerContract
from tenonry_testkit.targets import resolve_target


class TestStatic(SchedulerContract):
    scheduler = StaticScheduler
    caches_prefixes = True
    effort = 0.15


@pytest.mark.nightly
class TestStaticAtFullEffort(SchedulerContract):
    scheduler = StaticScheduler


def test_the_name_leads_to_the_class():
    assert resolve_target("scheduler", "static")[0] is StaticScheduler
