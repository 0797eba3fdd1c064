from __future__ import annotations

from tenonry_testkit.fakes import ReferenceScheduler
from tenonry_testkit.scheduler import SchedulerContract


class TestReference(SchedulerContract):
    scheduler = ReferenceScheduler
    effort = 0.2
