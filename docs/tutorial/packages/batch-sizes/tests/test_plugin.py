"""The conformance suite of step observers, and the reports of a run."""

from __future__ import annotations

import logging
import re
from typing import Any, ClassVar

import pytest
from tenonry.config import EngineConfig
from tenonry_testkit.step_observer import StepObserverContract

from batch_sizes.plugin import BatchSizes

EVERY = 5


class TestBatchSizes(StepObserverContract):
    step_observer = BatchSizes
    config: ClassVar[dict[str, Any]] = {"batch_sizes_every": EVERY}

    def test_shares_are_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        harness = self.harness()
        observer = self.build(harness.scheduler.context)
        with caplog.at_level(logging.INFO, "tenonry.batch_sizes"):
            self.follow(harness, observer)
            observer.shutdown()
        steps = [int(count) for count in re.findall(r"(\d+) steps: ", caplog.text)]
        assert steps[:-1] == [EVERY] * (len(steps) - 1)
        assert 0 < steps[-1] <= EVERY
        assert "2–3: " in caplog.text


def test_it_observes_nothing_by_default() -> None:
    assert not BatchSizes.observes(EngineConfig(model="fake"))
