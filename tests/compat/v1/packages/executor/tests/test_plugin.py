"""The conformance suite of executors."""

from __future__ import annotations

from tenonry_testkit.executor import ExecutorContract


class TestV1Executor(ExecutorContract):
    executor = "v1_executor.plugin:V1Executor"
