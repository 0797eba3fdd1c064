"""The conformance suite, over the engine recovery `resume`."""

from __future__ import annotations

from typing import ClassVar

from tenonry_recovery.recovery import ResumeStreams
from tenonry_testkit.engine_recovery import EngineRecoveryContract


class TestResumeStreams(EngineRecoveryContract):
    recovery = ResumeStreams


class TestWithoutRestarts(EngineRecoveryContract):
    recovery = "resume"
    config: ClassVar = {"engine_death": "stop"}


class TestWithFallbacks(EngineRecoveryContract):
    recovery = "resume"
    config: ClassVar = {"kv_connector": "host", "fallback_kv_connector": "off"}
