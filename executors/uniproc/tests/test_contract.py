"""The conformance suite of executors, with the one rank in this process (EC-16)."""

from __future__ import annotations

from tenonry_testkit.executor import ExecutorContract


class TestUniproc(ExecutorContract):
    executor = "uni"
