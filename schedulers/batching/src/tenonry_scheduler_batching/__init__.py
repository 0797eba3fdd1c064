"""The scheduler `batching` and its policies `fcfs` and `priority`; runs in the engine process."""

from __future__ import annotations

from tenonry_scheduler_batching.policy import SCHEDULING_POLICIES, AdmissionState, SchedulingPolicy

__all__ = ["SCHEDULING_POLICIES", "AdmissionState", "SchedulingPolicy"]
