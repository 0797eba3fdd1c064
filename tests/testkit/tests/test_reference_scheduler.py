from __future__ import annotations

import pytest

from tenonry_testkit.fakes import ReferenceScheduler
from tenonry_testkit.scheduler import SchedulerContract


@pytest.mark.slow
class TestReference(SchedulerContract):
    scheduler = ReferenceScheduler
    effort = 0.2
