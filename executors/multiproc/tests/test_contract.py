"""The conformance suite of executors, with two ranks of one stage and with two stages (EC-16)."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from tenonry_testkit.executor import ExecutorContract

pytestmark = pytest.mark.usefixtures("forked_children")


class TestTwoRanks(ExecutorContract):
    executor = "mp"
    config: ClassVar[dict[str, Any]] = {"tensor_parallel_size": 2}


class TestTwoStages(ExecutorContract):
    executor = "mp"
    config: ClassVar[dict[str, Any]] = {"pipeline_parallel_size": 2}

    # Tests independent of stages are above.
    test_start_reports_every_rank = None
    test_shutdown_before_start = None
    test_an_empty_step_is_answered = None
    test_calls_are_limited_to_the_allow_list = None
    test_an_error_in_a_call_is_raised = None
    test_shutdown_leaves_no_process = None
    test_a_rank_that_dies_is_reported = None

    def build(self, **worker_options):
        """Only the last stage has the sampled tokens."""
        return super().build(feeds_back=False, **worker_options)

    def test_the_pipeline_is_filled(self):
        """EC-10: a step per stage, none of which needs the token of one before it."""
        executor = self.start()
        assert (executor.max_concurrent_batches, executor.feeds_back_tokens) == (2, False)
