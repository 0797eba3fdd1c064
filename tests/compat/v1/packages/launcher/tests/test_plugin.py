"""An engine of fakes, started by the launcher in a process of its own."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from tenonry import AsyncLLM
from tenonry.plugin.manager import PluginManager
from tenonry_testkit.served import collect, params, served_config, tokens

LAUNCHER = "v1_launcher.plugin:V1Launcher"


def test_the_kernel_accepts_it() -> None:
    config = served_config(launcher=LAUNCHER)
    record = PluginManager(discover=False).resolve("launcher", config.launcher, config)
    assert record.target == LAUNCHER


def test_it_starts_an_engine_and_stops_it(
    fake_model_site: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(fake_model_site.folder), prepend=":")
    caplog.set_level(logging.INFO, "tenonry.v1_launcher")
    llm = AsyncLLM(served_config(launcher=LAUNCHER))
    try:
        assert list(llm.engine_pids) == ["engine 0"]
        prompt = [1, 2, 3]
        assert asyncio.run(collect(llm, prompt, params(), "r")) == tokens(prompt, params())
    finally:
        llm.shutdown()
    assert "started engine 0" in caplog.text
