"""The conformance suite, over the engine recovery `resume`."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest

from tenonry.errors import Unsupported
from tenonry_recovery.recovery import ResumeStreams
from tenonry_testkit.engine_recovery import EngineRecoveryContract


class TestResumeStreams(EngineRecoveryContract):
    recovery = ResumeStreams

    def test_engines_of_a_group_of_servers_cannot_be_replaced(self) -> None:
        front_end = self.front_end()
        front_end.engines.replace = None
        with pytest.raises(Unsupported, match="they serve a group of servers"):
            asyncio.run(front_end.recovery.replace({}))


class TestWithoutRestarts(EngineRecoveryContract):
    recovery = "resume"
    config: ClassVar = {"engine_death": "stop"}


class TestWithFallbacks(EngineRecoveryContract):
    recovery = "resume"
    config: ClassVar = {"kv_connector": "host", "fallback_kv_connector": "off"}
