"""The conformance suite of executors, and the lines of slow steps."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tenonry import LLM, SamplingParams
from tenonry_testkit.executor import ExecutorContract

EXECUTOR = "slow_steps.plugin:SlowSteps"


class TestSlowSteps(ExecutorContract):
    executor = EXECUTOR


@pytest.mark.parametrize(("longer_than_ms", "is_logged"), [(0, True), (60_000, False)])
def test_it_logs_slow_steps(
    fake_model_site: Any, caplog: pytest.LogCaptureFixture, longer_than_ms: int, is_logged: bool
) -> None:
    caplog.set_level(logging.INFO, "tenonry.slow_steps")
    options = {"name": EXECUTOR, "options": {"longer_than_ms": longer_than_ms}}
    fakes = {
        "worker": "tenonry_testkit.fakes:FakeWorker",
        "io_processor": "tenonry_testkit.fakes:ByteIOProcessor",
    }
    with LLM(model="fake", executor=options, **fakes) as llm:
        llm.generate(["Hello"], SamplingParams(max_tokens=2, ignore_eos=True))
    assert ("step 0: 5 tokens of 1 requests in" in caplog.text) == is_logged
