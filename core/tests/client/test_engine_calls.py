"""Calls of engines by name, and facts about them (AF-15, AF-17, AF-20, AF-22, AF-23)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tenonry.errors import EngineGenerateError
from tenonry_testkit.served import LENGTH

pytestmark = pytest.mark.integration


class TestCalls:
    """AF-15, AF-17, AF-20, AF-22, AF-23."""

    def test_the_front_end_forgets_files_before_the_engines_do(self, served, monkeypatch):
        calls = []

        async def call(method: str, *args: Any) -> list[bool]:
            calls.append(method)
            return [True]

        io_processor = served.engine.io_processor
        with monkeypatch.context() as patched:
            patched.setattr(io_processor, "reset_mm_cache", lambda: calls.append("front end"))
            patched.setattr(served.engine.engine_core, "call", call)
            served.run(served.engine.reset_mm_cache())
        assert calls == ["front end", "reset_mm_cache"]

    def test_of_the_engine(self, served):
        engine = served.engine

        async def main() -> None:
            assert await engine.reset_prefix_cache() is True
            await engine.reset_mm_cache()
            assert await engine.collective_rpc("echo", ["x"], timeout=5) == [[0, "x"]]
            assert await engine.add_lora("a", "/a") is True
            assert await engine.list_loras() == ["a"]
            assert await engine.pin_lora("a") is True
            assert await engine.remove_lora("a") is True
            await engine.start_profile()
            await engine.stop_profile()
            await engine.sleep(2)
            assert await engine.is_sleeping() is True
            await engine.wake_up()
            assert await engine.is_sleeping() is False
            assert await engine.get_supported_tasks() == ("generate",)
            assert await engine.is_tracing_enabled() is False
            await engine.do_log_stats()
            await engine.check_health()

        served.run(main())

    def test_of_the_workers_with_keyword_arguments(self, served):
        calls = served.engine.collective_rpc("echo", ["x"], kwargs={"tag": 1})
        assert served.run(calls) == [[0, "x", {"tag": 1}]]

    def test_of_the_engine_with_keyword_arguments(self, served):
        calls = served.engine.engine_calls.call("call_workers", "echo", args=["x"], kwargs={"a": 2})
        assert served.run(calls) == [[[0, "x", {"a": 2}]]]

    def test_a_call_that_fails_says_so_in_the_engines_words(self, served):
        with pytest.raises(EngineGenerateError, match="ValueError: worker says no"):
            served.run(served.engine.collective_rpc("raises"))
        with pytest.raises(EngineGenerateError, match="Unsupported: "):
            served.run(served.engine.collective_rpc("nothing"))

    def test_an_argument_that_cannot_be_sent_fails_here(self, served):
        with pytest.raises(TypeError, match="object cannot be sent"):
            served.run(served.engine.collective_rpc("echo", [object()]))
        assert served.engine.engine_core._calls == {}

    def test_many_calls_at_once_get_their_own_answers(self, served):
        async def main() -> list[Any]:
            return await asyncio.gather(
                *(served.engine.collective_rpc("echo", [i]) for i in range(50))
            )

        assert served.run(main()) == [[[0, i]] for i in range(50)]

    def test_simple_facts(self, served):
        """HS-16, US-1."""
        engine = served.engine
        assert engine.is_running
        assert list(engine.engine_pids) == ["engine 0"]
        assert engine.info.max_model_len == LENGTH
        assert engine.info.num_gpu_blocks == engine.engines.fleet.engines[0].num_gpu_blocks > 0
        assert engine.info.served_model_name == "fake"
        assert {record.kind for record in engine.info.plugins} >= {
            "executor",
            "scheduler",
            "worker",
            "launcher",
            "hook_module",
        }
        usage = engine.info.usage
        assert usage["architecture"] == "FakeForCausalLM"
        assert usage["context"] == "library"
        assert engine.stat_loggers == {}
        with pytest.raises(ValueError, match="has no tokenizer"):
            engine.get_tokenizer()
