"""The conformance suite of launchers, and the priority of an engine of fakes."""

from __future__ import annotations

import os
from typing import Any

import pytest
from tenonry import AsyncLLM
from tenonry_testkit.launcher import LauncherContract
from tenonry_testkit.served import served_config

LAUNCHER = "nice_engines.plugin:NiceEngines"


class TestNiceEngines(LauncherContract):
    launcher = LAUNCHER


def test_an_engine_has_a_lower_priority(
    fake_model_site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(fake_model_site.folder), prepend=":")
    launcher = {"name": LAUNCHER, "options": {"increment": 2}}
    llm = AsyncLLM(served_config(launcher=launcher))
    try:
        (pid,) = llm.engine_pids.values()
        own = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(19, own + 2)
    finally:
        llm.shutdown()
