"""Requests that AsyncLLM rejects: each alone, with the field or a hint; the others continue (AF-8, AF-9)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tenonry.client.admission import Admission
from tenonry.errors import EngineGenerateError, QueueFullError, RequestError, TenonryError
from tenonry.sampling_params import StructuredOutput
from tenonry_testkit.served import LENGTH, collect, params, tokens

pytestmark = pytest.mark.integration


class TestRefusals:
    @pytest.mark.parametrize(
        ("prompt", "fields", "error", "text"),
        [
            ([], {}, RequestError, "the prompt is empty"),
            ([1] * LENGTH, {}, RequestError, f"max_model_len={LENGTH}"),
            ([512], {}, RequestError, "token id 512"),
            (["a"], {}, RequestError, "flat list of integers"),
            ("", {}, RequestError, "the prompt .* is empty"),
            (None, {}, RequestError, "the prompt is None; it must be a text"),
            ([1], {"tags": {"k": "v" * 300}}, RequestError, "tag 'k'"),
            ([1], {"request_id": "x" * 300}, RequestError, "request_id has more than"),
            (
                [1],
                {"kv_transfer_params": {"x": object()}},
                RequestError,
                "request .* cannot be sent: object",
            ),
            ([1], {"kv_transfer_params": {"x": 2**70}}, RequestError, "cannot be sent"),
            (
                [1],
                {"data_parallel_rank": 5},
                RequestError,
                "data_parallel_rank=5: there is no such engine; the ranks here are 0",
            ),
            ([1], {"priority": "high"}, RequestError, "priority='high' has the wrong type"),
            ([1], {"priorty": 1}, TypeError, "did you mean 'priority'"),
            ([1], {"request_id": 5}, RequestError, "request_id=5 must be a str"),
        ],
    )
    def test_a_bad_request_fails_alone(self, served, prompt, fields, error, text):
        request_id = fields.pop("request_id", "r")

        async def main() -> None:
            with pytest.raises(error, match=text):
                await collect(served.engine, prompt, params(), request_id, **fields)

        served.run(main())

    def test_a_worker_without_grammars_is_named(self, served):
        constrained = params(structured_output=StructuredOutput(json="{}"))
        with pytest.raises(EngineGenerateError, match=r"worker .* does not support 'grammar'"):
            served.run(collect(served.engine, [1], constrained, "r"))

    def test_an_id_in_use_is_refused_and_its_owner_goes_on(self, served):
        async def main() -> None:
            stream = await served.begin()
            with pytest.raises(RequestError, match="request id 'r' is in use") as caught:
                await collect(served.engine, [1], params(), "r")
            assert caught.value.param == "request_id"
            await anext(stream)
            await stream.aclose()
            await collect(served.engine, [1], params(), "r")

        served.run(main())

    def test_another_event_loop_is_refused(self, served):
        served.run(collect(served.engine, [1], params(), "r"))
        with pytest.raises(
            TenonryError, match="serves another event loop; use it from one loop only"
        ):
            asyncio.run(collect(served.engine, [1], params(), "r"))
        with pytest.raises(TenonryError, match="another event loop"):
            asyncio.run(served.engine.reset_prefix_cache())

    def test_a_full_queue_is_refused_with_a_hint(self, served, monkeypatch):
        """Fault 17: accepted ones are unaffected; `n` completions count as `n`."""
        monkeypatch.setattr(Admission, "capacity", 4)

        async def main() -> None:
            first = await served.begin("a", n=3, temperature=1.0, seed=1)
            with pytest.raises(
                QueueFullError,
                match=r"3 sequences run or wait, the request brings 2, .* the capacity is 4",
            ) as full:
                await collect(served.engine, [1], params(n=2, temperature=1), "b")
            assert full.value.retry_after_s > 0
            assert await collect(served.engine, [1], params(), "c") == tokens([1], params())
            await first.aclose()
            assert len(await collect(served.engine, [1], params(), "d")) == 8

        served.run(main())

    def test_requests_that_are_still_being_tokenised_count(self, served, threads, monkeypatch):
        monkeypatch.setattr(Admission, "capacity", 2)

        async def main() -> list[Any]:
            work = (collect(served.engine, "long text", params(), f"{i}") for i in range(5))
            return await asyncio.gather(*work, return_exceptions=True)

        results = served.run(main())
        assert sum(isinstance(result, QueueFullError) for result in results) == 3
