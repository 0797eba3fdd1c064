"""A front end over an engine process of fakes, and tests independent of their user's settings."""

from __future__ import annotations

import asyncio
import os

from tenonry.client.async_llm import AsyncLLM
from tenonry_testkit.served import collect, params, served_config, tokens


def test_streams_are_what_the_arithmetic_says(fake_model_site, no_outside_settings):
    with asyncio.Runner() as runner:
        engine = AsyncLLM(served_config())
        try:
            for prompt in ([1, 2, 3], "four"):
                assert runner.run(collect(engine, prompt, params(), "r")) == tokens(
                    prompt, params()
                )
        finally:
            engine.shutdown()


def test_settings_from_outside_are_gone_for_one_test(monkeypatch, request):
    monkeypatch.setenv("TENONRY_MAX_NUM_SEQS", "3")
    request.getfixturevalue("no_outside_settings")
    assert "TENONRY_MAX_NUM_SEQS" not in os.environ
