"""The conformance suite of workers, restricted to the capabilities of a worker that samples a fixed token."""

from __future__ import annotations

from typing import Any, ClassVar

from tenonry_testkit.worker import WorkerContract


class TestNullWorker(WorkerContract):
    worker = "null"

    # It reads no sampling parameters and returns no log-probabilities, as its class documents.
    supports_min_tokens = False
    supports_allowed_tokens = False
    supports_logprobs = False


class TestNullWorkerWithSlowSteps(TestNullWorker):
    """Steps that take a while and are queued two at a time."""

    options: ClassVar[dict[str, Any]] = {"step_ms": 0.1, "steps_in_flight": 2}
