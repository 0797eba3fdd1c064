"""The conformance suite of workers, without the capabilities that this one lacks."""

from __future__ import annotations

from tenonry_testkit.worker import WorkerContract


class TestCounting(WorkerContract):
    worker = "counting.plugin:Counting"
    supports_min_tokens = False
    supports_logprobs = False
    supports_allowed_tokens = False
