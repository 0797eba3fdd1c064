"""Clients that disconnect, read slowly or connect too early: the cost of streams to impolite clients."""

from __future__ import annotations

import asyncio
import json

import pytest

from tenonry.errors import EngineGenerateError
from tenonry_openai_server import sse
from tenonry_openai_server.disconnect import DisconnectWatch


class Client:
    """An ASGI client that reads and disconnects on command."""

    def __init__(self, app, path: str, body: dict) -> None:
        self.app, self.sent, self.gone = app, [], asyncio.Event()
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.body: bytes | None = json.dumps(body).encode()
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        self.scope = {
            "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": headers, "root_path": "", "scheme": "http", "http_version": "1.1", "server": ("localhost", 80),
        }  # fmt: skip

    async def receive(self) -> dict:
        if self.body is not None:
            body, self.body = self.body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict) -> None:
        await self.may_read.wait()
        self.sent.append(message)

    def start(self) -> asyncio.Task:
        return asyncio.create_task(self.app(self.scope, self.receive, self.send))


COMPLETION = {"prompt": "ab", "max_tokens": 1000}


async def until(condition) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  a test looks from outside
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("prompt", ["ab", ["ab", "cd"]])
@pytest.mark.parametrize("when", ["before the first output", "later"])
def test_client_that_goes_away_is_aborted(stream, prompt, when, api, caplog):
    """Reliability, fault 14: the engine's stream is closed immediately, at any stage of the request."""
    api.engine.endless = True
    if when.startswith("before"):
        api.engine.gate.clear()

    async def scenario() -> None:
        caplog.set_level("INFO", "tenonry.server")
        client = Client(
            api.app, "/v1/completions", {**COMPLETION, "prompt": prompt, "stream": stream}
        )
        task = client.start()
        await until(lambda: len(api.engine.running) == (1 if prompt == "ab" else 2))
        if stream and when == "later":
            await until(lambda: len(client.sent) > 3)
        client.gone.set()
        async with asyncio.timeout(10):
            await task
        assert set(api.engine.ended.values()) == {"aborted"}
        assert not api.engine.running
        assert api.state.active == 0

    api.run(scenario())
    assert caplog.text.count("client disconnected") == 1


def test_client_that_goes_away_while_it_does_not_read_is_aborted(api):
    api.engine.endless = True

    async def scenario() -> None:
        client = Client(api.app, "/v1/completions", {**COMPLETION, "stream": True})
        task = client.start()
        await until(lambda: len(client.sent) > 3)
        client.may_read.clear()
        await asyncio.sleep(0.01)
        client.gone.set()
        async with asyncio.timeout(10):
            await task
        assert set(api.engine.ended.values()) == {"aborted"}

    api.run(scenario())


def test_slow_reader_holds_back_its_own_stream_only(api):
    """Reliability, fault 15: nothing is taken from the engine's stream that the client does not take."""
    api.engine.endless = True
    pulled = []
    outputs = api.engine._outputs

    async def counting(request_id, *rest):
        async for output in outputs(request_id, *rest):
            pulled.append(request_id)
            yield output

    api.engine._outputs = counting

    async def scenario() -> None:
        slow = Client(api.app, "/v1/completions", {**COMPLETION, "stream": True})
        slow.may_read.clear()
        first = slow.start()
        await until(lambda: len(pulled) > 0)
        quick = Client(api.app, "/v1/completions", {**COMPLETION, "stream": True})
        second = quick.start()
        await until(lambda: len(quick.sent) > 200)
        (slow_id, *_) = api.engine.running
        assert pulled.count(slow_id) == 1
        for client, task in ((slow, first), (quick, second)):
            client.gone.set()
            await task

    api.run(scenario())


def test_headers_do_not_wait_for_ever(api, monkeypatch):
    """A request that queues long receives its headers early; a later failure is an event of the stream."""
    monkeypatch.setattr(sse, "HEAD_START_S", 0.01)
    api.engine.gate.clear()

    async def scenario() -> None:
        client = Client(api.app, "/v1/completions", {**COMPLETION, "stream": True})
        task = client.start()
        await until(lambda: len(client.sent) == 1)
        assert client.sent[0]["status"] == 200
        assert (b"content-type", b"text/event-stream; charset=utf-8") in client.sent[0]["headers"]
        api.engine.after = EngineGenerateError("late")
        api.engine.gate.set()
        async with asyncio.timeout(10):
            await task
        body = b"".join(message.get("body", b"") for message in client.sent[1:])
        assert b'"code":"generation_failed"' in body
        assert body.endswith(b"data: [DONE]\n\n")

    api.run(scenario())


def test_failure_before_the_first_output_but_after_the_headers(api, monkeypatch):
    monkeypatch.setattr(sse, "HEAD_START_S", 0.01)
    api.engine.gate.clear()

    async def scenario() -> None:
        client = Client(api.app, "/v1/completions", {**COMPLETION, "stream": True})
        task = client.start()
        await until(lambda: len(client.sent) == 1)
        api.engine.dead = True
        async with asyncio.timeout(10):
            await task
        assert [message.get("status") for message in client.sent] == [200, None]
        assert b'"code":"engine_dead"' in client.sent[1]["body"]

    api.run(scenario())


def test_aborted_requests_end_with_a_finish_reason(api):
    api.engine.endless = True

    async def scenario() -> None:
        client = Client(
            api.app,
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "x"}], "stream": True},
        )
        task = client.start()
        await until(lambda: len(client.sent) > 3)
        await api.engine.abort_all()
        await task
        assert b'"finish_reason":"abort"' in client.sent[-2]["body"]
        assert client.sent[-1]["body"] == b"data: [DONE]\n\n"

    api.run(scenario())


def test_watch_leaves_other_cancellations_alone():
    async def scenario() -> None:
        async def never() -> dict:
            await asyncio.Event().wait()
            return {}

        async def body() -> None:
            async with DisconnectWatch(never):
                await asyncio.Event().wait()

        task = asyncio.create_task(body())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())


def test_connection_without_a_whole_body_is_dropped_quietly(api, caplog):
    async def scenario() -> None:
        client = Client(api.app, "/v1/completions", COMPLETION)
        client.body = None
        client.gone.set()
        await client.start()
        assert not api.engine.received

    api.run(scenario())
    assert "ERROR" not in caplog.text
