"""Requests that wait while AsyncLLM is paused, and are rejected while it drains (AF-12, AF-13)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from tenonry.client.admission import Admission
from tenonry.errors import DrainingError, EngineGenerateError, QueueFullError, RequestError
from tenonry.outputs import RequestOutput
from tenonry_testkit.served import collect, params, tokens

pytestmark = pytest.mark.integration


async def rest(first: RequestOutput, stream: AsyncGenerator[RequestOutput, None]) -> list[int]:
    """The tokens of a stream that has begun."""
    outputs = [first, *[output async for output in stream]]
    return [token for output in outputs for token in output.outputs[0].token_ids]


class TestPause:
    """AF-12, AF-13."""

    def test_a_hold_that_is_refused_pauses_nothing(self, served, monkeypatch):
        async def refused() -> None:
            raise EngineGenerateError("not here")

        async def main() -> None:
            with pytest.raises(EngineGenerateError, match="not here"):
                await served.engine.pause_generation(keep=True)
            assert not served.engine.is_paused

        monkeypatch.setattr(served.engine.calls["operations"], "hold", refused)
        served.run(main())

    def test_what_runs_is_aborted_and_what_comes_waits(self, served):
        async def main() -> None:
            stream = await served.begin()
            await served.engine.pause_generation()
            assert served.engine.is_paused
            assert [o async for o in stream][-1].outputs[0].finish_reason == "abort"
            held = [
                asyncio.ensure_future(collect(served.engine, [i], params(), f"h{i}"))
                for i in range(3)
            ]
            await asyncio.sleep(0.1)
            assert not any(task.done() for task in held)
            await served.engine.pause_generation()  # idempotent
            await served.engine.resume_generation()
            assert not served.engine.is_paused
            assert await asyncio.gather(*held) == [tokens([i], params()) for i in range(3)]

        served.run(main())

    def test_what_runs_may_be_waited_for(self, served):
        async def main() -> None:
            stream = served.engine.generate([1], params(max_tokens=50), "r")
            task = asyncio.ensure_future(rest(await anext(stream), stream))
            await served.engine.pause_generation(wait_for_inflight_requests=True, clear_cache=False)
            assert served.engine.num_unfinished_requests == 0
            assert await task == tokens([1], params(max_tokens=50))
            await served.engine.resume_generation()

        served.run(main())

    def test_caches_are_cleared_unless_that_is_not_wanted(self, served, monkeypatch):
        asked, call = [], served.engine.engine_core.call

        def noted(method: str, *args: Any) -> Any:
            asked.append((method, *args, served.engine.num_unfinished_requests))
            return call(method, *args)

        monkeypatch.setattr(served.engine.engine_core, "call", noted)

        async def main() -> None:
            await served.begin()
            await served.engine.pause_generation(clear_cache=False)
            assert asked == []
            await served.engine.pause_generation()
            assert asked == [("reset_prefix_cache", False, False, 0), ("reset_mm_cache", 0)]
            await served.engine.resume_generation()
            await served.engine.reset_prefix_cache(True, reset_connector=True)
            assert asked[2:] == [("operations.release", 0), ("reset_prefix_cache", True, True, 0)]

        served.run(main())

    def test_a_held_request_can_be_cancelled(self, served):
        async def main() -> None:
            await served.engine.pause_generation()
            task = asyncio.ensure_future(collect(served.engine, [1], params(), "r"))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await served.engine.resume_generation()
            assert not served.engine.admission.tickets

        served.run(main())

    def test_a_held_request_can_be_aborted(self, served):
        """AF-11; its id stays in use until then."""

        async def main() -> None:
            await served.engine.pause_generation()
            held = [
                asyncio.ensure_future(collect(served.engine, [1], params(), name)) for name in "ab"
            ]
            await asyncio.sleep(0)  # both are held
            with pytest.raises(RequestError, match="request id 'a' is in use"):
                await collect(served.engine, [1], params(), "a")
            await served.engine.abort(["a", "unknown"])
            assert await held[0] == []
            assert not held[1].done()
            await served.engine.resume_generation()
            assert await held[1] == tokens([1], params())

        served.run(main())

    def test_held_requests_count_against_the_queue(self, served, monkeypatch):
        monkeypatch.setattr(Admission, "capacity", 2)

        async def main() -> None:
            await served.engine.pause_generation()
            held = [
                asyncio.ensure_future(collect(served.engine, [1], params(), f"{i}"))
                for i in range(2)
            ]
            await asyncio.sleep(0.05)
            with pytest.raises(QueueFullError):
                await collect(served.engine, [1], params(), "one too many")
            await served.engine.resume_generation()
            await asyncio.gather(*held)

        served.run(main())

    def test_a_bad_request_is_refused_while_paused(self, served):
        async def main() -> None:
            await served.engine.pause_generation()
            with pytest.raises(RequestError):
                await collect(served.engine, [], params(), "r")
            await served.engine.resume_generation()

        served.run(main())


class TestDrain:
    @pytest.fixture(autouse=True)
    def _reopened(self, served) -> Any:
        yield
        served.engine.admission.is_draining = False

    def test_what_runs_is_finished_and_what_comes_is_refused(self, served):
        async def main() -> None:
            stream = served.engine.generate([1], params(max_tokens=30), "r")
            task = asyncio.ensure_future(rest(await anext(stream), stream))
            drained = asyncio.ensure_future(served.engine.drain(10))
            await asyncio.sleep(0)
            assert served.engine.admission.is_draining
            with pytest.raises(
                DrainingError, match="shutting down and accepts no new requests"
            ) as full:
                await collect(served.engine, [1], params(), "late")
            assert full.value.retry_after_s == 5.0
            assert await drained is True
            assert await task == tokens([1], params(max_tokens=30))

        served.run(main())

    def test_what_is_still_being_read_is_finished_too(self, served, threads, monkeypatch):
        """A long text is tokenised in a thread, while no stream is open."""
        process = served.engine.input_processor.process
        text = "a text"
        begun, proceed = threading.Event(), threading.Event()

        def slowly(prompt: Any, *args: Any, **fields: Any) -> Any:
            begun.set()
            assert proceed.wait(20)
            return process("a", *args, **fields)

        monkeypatch.setattr(served.engine.input_processor, "process", slowly)

        async def main() -> None:
            task = asyncio.ensure_future(collect(served.engine, text, params(), "r"))
            assert await asyncio.to_thread(begun.wait, 20)
            drained = asyncio.ensure_future(served.engine.drain(10))
            await asyncio.sleep(0)
            proceed.set()
            assert await drained is True
            assert task.done()
            assert await task == tokens("a", params())

        served.run(main())

    def test_what_takes_too_long_is_left(self, served):
        async def main() -> None:
            stream = await served.begin()
            assert await served.engine.drain(0.05) is False
            await stream.aclose()

        served.run(main())
