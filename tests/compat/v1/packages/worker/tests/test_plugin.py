"""The conformance suite of workers."""

from __future__ import annotations

from tenonry_testkit.worker import WorkerContract


class TestV1Worker(WorkerContract):
    worker = "v1_worker.plugin:V1Worker"
