"""The conformance suite of workers, restricted to the capabilities of a worker that samples a fixed token."""

from __future__ import annotations

from typing import Any, ClassVar

from tenonry_testkit.worker import WorkerContract


class TestNullWorker(WorkerContract):
    worker = "null"

    # It reads no sampling parameters and returns no log-probabilities, as its class documents.
    test_stop_ids_are_held_back_until_min_tokens = None
    test_a_row_that_has_no_token_to_sample_fails_alone = None
    test_results_have_the_shapes_that_the_interface_names = None


class TestNullWorkerWithSlowSteps(TestNullWorker):
    """Steps that take a while and are queued two at a time."""

    options: ClassVar[dict[str, Any]] = {"step_ms": 0.1, "steps_in_flight": 2}
