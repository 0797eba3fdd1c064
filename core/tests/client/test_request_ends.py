"""With `log_requests`, one line reports that a request was added, and one its outcome."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tenonry.errors import EngineDeadError, EngineGenerateError, RequestError
from tenonry_testkit.kernel.served import Served
from tenonry_testkit.served import collect, params

pytestmark = pytest.mark.usefixtures("forked_children")

LONG = params(max_tokens=400)
FAILING = {
    "name": "tenonry_testkit.kernel.faulty:FaultyWorker",
    "options": {"fail_row_token": 7, "delay_s": 0.002},
}


@pytest.fixture
def logged(serve: Callable[..., Served], caplog: pytest.LogCaptureFixture) -> Any:
    """An engine that logs its requests; `lines()` are those of each request, in order."""
    served: Any = serve(log_requests=True, worker=FAILING, engine_recovery="end")

    def lines(request_id: str) -> list[str]:
        start = f"request {request_id}: "
        messages = [record.getMessage() for record in caplog.records]
        return [text.removeprefix(start) for text in messages if text.startswith(start)]

    served.lines = lines
    with caplog.at_level(logging.INFO, logger="tenonry"):
        yield served


def test_one_that_finishes_says_with_which_reason_and_counts(logged):
    logged.run(collect(logged.engine, [1, 2], params(), "r"))
    added, ended = logged.lines("r")
    assert added.startswith("added with 2 prompt tokens, SamplingParams(")
    assert ended == "finished: length (2 prompt tokens, 8 output tokens)"


def test_completions_that_end_alike_are_named_once(logged):
    logged.run(collect(logged.engine, [1], params(n=3, temperature=1.0, seed=1), "r"))
    assert logged.lines("r")[1:] == ["finished: length (1 prompt tokens, 24 output tokens)"]


@pytest.mark.parametrize("how", ["abort", "close", "n"])
def test_one_that_is_aborted_says_so_once(logged, how):
    async def main() -> None:
        fields = {"n": 3, "temperature": 1.0, "seed": 1} if how == "n" else {}
        stream = logged.engine.generate([1], params(max_tokens=400, **fields), "r")
        await anext(stream)
        if how != "close":
            await logged.engine.abort("r")
        await stream.aclose()

    logged.run(main())
    _, ended = logged.lines("r")
    assert ended.startswith("aborted (1 prompt tokens, ")


def test_one_that_fails_in_the_engine_says_why(logged):
    with pytest.raises(EngineGenerateError):
        logged.run(collect(logged.engine, [7], params(), "r"))
    _, ended = logged.lines("r")
    assert ended.startswith("failed: ")
    assert "request r" not in ended


def test_one_that_cannot_be_sent_says_why(logged):
    with pytest.raises(RequestError):
        logged.run(collect(logged.engine, [1], params(), "r", kv_transfer_params={"x": 2**70}))
    _, ended = logged.lines("r")
    assert ended.startswith("failed: request r cannot be sent: ")


def test_one_whose_output_cannot_be_post_processed_says_why(logged, monkeypatch):
    def broken(output: Any) -> Any:
        raise KeyError("on purpose")

    monkeypatch.setattr(logged.engine, "_post_process", broken)
    with pytest.raises(EngineGenerateError):
        logged.run(collect(logged.engine, [1], LONG, "r"))
    _, ended = logged.lines("r")
    assert ended.startswith("failed: 'on purpose' (")


def test_those_of_an_engine_that_dies_fail_once_each(logged):
    async def main() -> None:
        tasks = [
            asyncio.ensure_future(collect(logged.engine, [1], LONG, f"r{i}")) for i in range(8)
        ]
        await logged.counts_are(running=8, waiting=0)
        os.kill(logged.pid, signal.SIGKILL)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(result) for result in results} == {EngineDeadError}

    logged.run(main())
    for number in range(8):
        _, ended = logged.lines(f"r{number}")
        assert ended.startswith("failed: the engine died: engine 0 ")


def test_nothing_is_logged_unless_it_is_wanted(shared, caplog):
    with caplog.at_level(logging.INFO, logger="tenonry"):
        shared.run(collect(shared.engine, [1], params(), "quiet"))
    assert "request quiet" not in caplog.text
