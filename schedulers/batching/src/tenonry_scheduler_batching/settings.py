"""Settings of the scheduler `batching`, and the extension point of its policies. Light: imported by the front end as
well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenonry.config import PluginChoice, setting
from tenonry.interfaces.plugin import PluginSettings
from tenonry.point import Point

# Any object with a method of `SchedulingPolicy` is valid, so there is no base class to check.
SCHEDULING_POLICIES = Point(
    "tenonry.scheduling_policies",
    provider={"fcfs": "tenonry-scheduler-batching", "priority": "tenonry-scheduler-batching"},
)


class BatchingSettings(PluginSettings):
    """Settings of the scheduler `batching`."""

    scheduling_policy: PluginChoice = setting(
        PluginChoice(name="fcfs"), group="plugins", replaceable=True
    )
    """Queue order, admission and preemption of the batching scheduler."""

    def uses(self, options: Mapping[str, Any]) -> list[tuple[Point, PluginChoice]]:
        return [(SCHEDULING_POLICIES, self.scheduling_policy)]
