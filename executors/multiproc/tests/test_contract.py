"""The conformance suite of executors: one rank, ranks of one stage, stages, and no shared memory (EC-16)."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from tenonry_executor_multiproc import broadcast
from tenonry_testkit.executor import ExecutorContract


class TestOneRank(ExecutorContract):
    executor = "mp"


class TestTwoRanks(ExecutorContract):
    executor = "mp"
    config: ClassVar[dict[str, Any]] = {"tensor_parallel_size": 2}


class TestTwoStages(ExecutorContract):
    executor = "mp"
    config: ClassVar[dict[str, Any]] = {"pipeline_parallel_size": 2}

    def build(self, **worker_options):
        """Only the last stage knows what was sampled."""
        return super().build(feeds_back=False, **worker_options)

    def test_the_pipeline_is_filled(self):
        """EC-10: a step per stage, none of which needs the token of one before it."""
        executor = self.start()
        assert (executor.max_concurrent_batches, executor.feeds_back_tokens) == (2, False)


class TestWithoutSharedMemory(ExecutorContract):
    """Systems without memfd: a socket per rank."""

    executor = "mp"
    config: ClassVar[dict[str, Any]] = {"tensor_parallel_size": 2}

    @pytest.fixture(autouse=True)
    def _no_memfd(self, monkeypatch):
        monkeypatch.setattr(broadcast, "has_shared_memory", lambda: False)
