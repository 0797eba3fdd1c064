"""The scheduler `batching` and its policies `fcfs` and `priority`; runs in the engine process.

The classes load on first use: front ends import `tenonry_scheduler_batching.settings` alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tenonry_scheduler_batching.settings import SCHEDULING_POLICIES

if TYPE_CHECKING:
    from tenonry_scheduler_batching.policy import AdmissionState, SchedulingPolicy

__all__ = ["SCHEDULING_POLICIES", "AdmissionState", "SchedulingPolicy"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from tenonry_scheduler_batching import policy

    return getattr(policy, name)
