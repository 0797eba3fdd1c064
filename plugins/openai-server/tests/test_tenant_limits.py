"""Limits per tenant over HTTP, with the official client: every route, streams, and clients that leave."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest

from tenonry_openai_server.admission import AdmissionLayer
from tenonry_openai_server.app import create_app

KEYS = ("sk-alice", "sk-bob")
CHAT: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


def client(live, key: str = KEYS[0]) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{live.url}/v1", api_key=key, max_retries=0)


@pytest.fixture
def serve(make_live):
    def serve(**limits: Any):
        return make_live(route=("tenant-limits", "messages", "pooling"), api_key=KEYS, **limits)

    return serve


def test_openai_client_sees_a_rate_limit_error_and_its_headers(serve):
    live = serve(tenant_requests_per_minute=2)
    with client(live) as alice, client(live, KEYS[1]) as bob:
        raw = alice.chat.completions.with_raw_response.create(**CHAT)
        assert raw.headers["x-ratelimit-limit-requests"] == "2"
        assert raw.headers["x-ratelimit-remaining-requests"] == "1"
        assert raw.headers["x-ratelimit-reset-requests"].endswith("s")
        alice.completions.create(model="fake", prompt="a")
        with pytest.raises(openai.RateLimitError) as caught:
            alice.chat.completions.create(**CHAT)
        assert caught.value.code == "rate_limit_exceeded"
        assert caught.value.type == "rate_limit_error"
        assert "this client has reached requests_per_minute=2; try again in 30 s" in str(
            caught.value
        )
        assert caught.value.response.headers["retry-after"] == "30"
        assert caught.value.response.headers["x-ratelimit-remaining-requests"] == "0"
        bob.chat.completions.create(**CHAT)
        assert len(alice.models.list().data) == 1  # requests no tokens
        assert len(live.engine.received) == 3


def test_errors_have_the_shape_of_the_protocol(serve):
    live = serve(tenant_requests_per_minute=1)
    headers = {"x-api-key": KEYS[0]}
    first, second = (
        httpx.post(f"{live.url}/v1/messages", json={**CHAT, "max_tokens": 9}, headers=headers)
        for _ in range(2)
    )
    assert first.headers["x-ratelimit-remaining-requests"] == "0"
    assert (first.status_code, second.status_code) == (200, 429)
    assert second.json()["type"] == "error"
    assert second.json()["error"]["type"] == "rate_limit_error"
    assert second.headers["retry-after"] == "60"


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_of_prompts_and_answers_are_counted(serve, stream):
    live = serve(tenant_tokens_per_minute=40)
    with client(live) as alice:
        for _ in range(2):  # 11 of the prompt, 16 of the answer
            got = alice.completions.create(model="fake", prompt="x" * 10, stream=stream)
            if stream:
                list(got)
        with pytest.raises(openai.RateLimitError, match="tokens_per_minute=40"):
            alice.completions.create(model="fake", prompt="x", stream=stream)


def test_tokens_of_prompts_without_answers_are_counted(serve):
    live = serve(tenant_tokens_per_minute=2)
    with client(live) as alice:
        alice.embeddings.create(model="fake", input="x")
        with pytest.raises(openai.RateLimitError, match="tokens_per_minute=2"):
            alice.embeddings.create(model="fake", input="x")


def test_streams_run_concurrently_up_to_the_limit_and_free_it_when_clients_leave(serve, eventually):
    live = serve(tenant_concurrent_requests=1)
    live.call(lambda: setattr(live.engine, "endless", True))
    headers = {"authorization": f"Bearer {KEYS[0]}"}
    url = f"{live.url}/v1/chat/completions"
    with httpx.stream("POST", url, json={**CHAT, "stream": True}, headers=headers) as response:
        parts = response.iter_raw()  # dropped, it would close the connection
        next(parts)
        with client(live) as alice, pytest.raises(openai.RateLimitError, match="concurrent_req"):
            alice.chat.completions.create(**CHAT)
    eventually(lambda: not live.state.active)
    live.call(lambda: setattr(live.engine, "endless", False))
    with client(live) as alice:
        alice.chat.completions.create(**CHAT)


def test_failed_requests_free_their_place(make_api):
    api = make_api(route=("tenant-limits",), tenant_concurrent_requests=1)
    for _ in range(3):
        assert api.post("/v1/completions", {"prompt": 3.5}).status_code == 400
    api.engine.before = RuntimeError("boom")
    for _ in range(3):
        assert api.post("/v1/completions", {"prompt": "a"}).status_code == 500
    api.engine.before = None
    assert api.post("/v1/completions", {"prompt": "a"}).status_code == 200


def test_clients_at_once_get_what_the_limit_leaves(make_api):
    api = make_api(route=("tenant-limits",), tenant_requests_per_minute=5)

    async def all_of_them() -> list[int]:
        body = {"json": {"prompt": "a"}}
        sent = [api.send("POST", "/v1/completions", **body) for _ in range(20)]
        return [answer.status_code for answer in await asyncio.gather(*sent)]

    statuses = api.run(all_of_them())
    assert sorted(statuses) == [200] * 5 + [429] * 15


def test_application_has_no_layer_for_admissions_without_limits(make_api):
    def has_layer(**limits: Any) -> bool:
        return isinstance(make_api(route=("tenant-limits",), **limits).app.app, AdmissionLayer)

    assert not has_layer()
    assert has_layer(tenant_tokens_per_minute=1)


def test_wrong_file_ends_the_start(make_api, tmp_path):
    with pytest.raises(Exception, match=r"tenants_file=.*cannot be read"):
        create_app(make_api(route=("tenant-limits",), tenants_file=str(tmp_path / "x")).state)
