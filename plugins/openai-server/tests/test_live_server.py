"""A real server on a real socket: the official client, malformed HTTP, large and slow requests."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading

import openai
import pytest
from openai_server_fakes import ANSWER

from tenonry.errors import EngineGenerateError

STREAM = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\nContent-Length: 46\r\n\r\n"
    b'{"prompt":"x","stream":true,"max_tokens":1000}'
)


@pytest.fixture
def connect():
    with contextlib.ExitStack() as stack:
        yield lambda live: Raw(
            stack.enter_context(socket.create_connection(("127.0.0.1", live.port), timeout=20))
        )


@pytest.fixture
def client(live):
    with openai.OpenAI(
        base_url=live.url + "/v1", api_key="none", max_retries=0, timeout=20
    ) as client:
        yield client


class Raw:
    """A plain socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def send(self, data: bytes) -> Raw:
        self.sock.sendall(data)
        return self

    def until(self, text: bytes) -> bytes:
        """Receive up to and including `text`; a response may arrive in several pieces."""
        data = b""
        while text not in data and (part := self.sock.recv(65536)):
            data += part
        return data

    def answer(self) -> tuple[int, dict]:
        """Status and JSON body of the one response after which the server closes."""
        data = b""
        while part := self.sock.recv(65536):
            data += part
        head, _, body = data.partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body)


@pytest.mark.integration  # the client starts `uname`
def test_official_client_completes_and_streams(client):
    done = client.completions.create(model="fake", prompt="hi", max_tokens=30)
    assert (done.choices[0].text, done.choices[0].finish_reason) == (ANSWER, "stop")
    assert done.usage.prompt_tokens_details.cached_tokens == 2
    chunks = list(client.completions.create(model="fake", prompt="hi", max_tokens=30, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == ANSWER


def test_official_client_chats_and_streams(client):
    messages = [{"role": "user", "content": "hi"}]
    done = client.chat.completions.create(
        model="fake", messages=messages, logprobs=True, top_logprobs=2, max_tokens=4
    )
    assert done.choices[0].message.content == ANSWER[:4]
    assert done.choices[0].logprobs.content[0].top_logprobs[0].token == "H"
    options = {"include_usage": True}
    stream = client.chat.completions.create(
        model="fake", messages=messages, stream=True, stream_options=options
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content for chunk in chunks if chunk.choices) == ANSWER
    assert chunks[-1].usage.completion_tokens == len(ANSWER)
    extra = client.chat.completions.create(
        model="fake", messages=messages, extra_body={"return_token_ids": True}
    )
    assert extra.choices[0].token_ids == [ord(c) for c in ANSWER]


def test_official_client_raises_what_was_wrong(client, live):
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="other", prompt="hi")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model="fake", prompt="hi", temperature=-1)
    assert bad.value.param == "temperature"
    assert [model.id for model in client.models.list()] == ["fake"]
    live.call(lambda: setattr(live.engine, "after", EngineGenerateError("x")))
    with pytest.raises(openai.APIError, match="could not finish"):
        list(client.completions.create(model="fake", prompt="hi", stream=True))


def test_official_client_that_leaves_is_aborted(client, live, eventually):
    live.call(lambda: setattr(live.engine, "endless", True))
    stream = client.completions.create(model="fake", prompt="hi", stream=True)
    next(iter(stream))
    stream.close()
    eventually(lambda: list(live.engine.ended.values()) == ["aborted"])


@pytest.mark.parametrize(
    "data",
    [
        b"GARBAGE\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: abc\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_what_is_no_http_gets_400_and_harms_nobody(data, live, connect):
    status, body = connect(live).send(data).answer()
    assert status == 400
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert ok(live, connect)


@pytest.mark.parametrize("path", [b"/v1/completions", b"/v1/models", b"/nothing"])
def test_garbage_behind_a_valid_head_leaves_no_error_in_the_log(path, live, connect, caplog):
    head = b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
    raw = connect(live).send(head + b"Content-Type: application/json\r\n\r\nZZZ\r\n")
    assert raw.answer()[0] == 400
    assert ok(live, connect)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    "headers",
    [
        b"",
        b"Host: a\r\nHost: a\r\n",
        b"Host: localhost\r\nhost: evil.test\r\n",
        b"Host: a b\r\n",
        b"Host: a/b\r\n",
        b"Host: user@localhost\r\n",
        b"Host: localhost:80x\r\n",
        b"Host: [::1\r\n",
    ],
)
def test_host_must_be_there_once_and_valid(headers, live, connect):
    """RFC 9112, section 3.2."""
    status, body = connect(live).send(b"GET /health HTTP/1.1\r\n" + headers + b"\r\n").answer()
    assert (status, body["error"]["code"]) == (400, "invalid_http")
    assert "Host" in body["error"]["message"]
    assert ok(live, connect)


@pytest.mark.parametrize("host", [b"localhost:8000", b"127.0.0.1", b"[::1]:80", b"", b"LOCALHOST."])
def test_usual_hosts_are_served(host, live, connect):
    request = b"GET /health HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % host
    assert connect(live).send(request).answer()[0] == 200


@pytest.mark.parametrize("path", [b"/health", b"/ready", b"/v1/models"])
def test_head_has_the_headers_of_get_and_no_body(path, live, connect):
    request = b" %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % path
    head = connect(live).send(b"HEAD" + request).until(b"nothing ends it but the connection")
    get = connect(live).send(b"GET" + request).until(b"nothing ends it but the connection")
    headers, _, body = head.partition(b"\r\n\r\n")
    assert headers.startswith(b"HTTP/1.1 200 ")
    assert body == b""
    size = len(get.partition(b"\r\n\r\n")[2])
    assert b"content-length: %d" % size in headers


def ok(live, connect) -> bool:
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    return connect(live).send(request).answer() == (200, {"status": "ok"})


@pytest.mark.parametrize(
    "extra", [b"x-long: " + b"a" * 70_000, b"\r\n".join(b"x-%d: y" % i for i in range(20_000))]
)
def test_head_is_bounded(extra, live, connect):
    status, body = connect(live).send(b"GET /health HTTP/1.1\r\n" + extra + b"\r\n\r\n").answer()
    assert (status, body["error"]["code"]) == (431, "headers_too_large")


def test_header_without_an_end_is_bounded(live, connect):
    """The parser collects a value until it ends; it must not grow without bound."""
    raw = connect(live).send(b"GET /health HTTP/1.1\r\nx: ")
    for _ in range(20):
        raw.send(b"a" * 10_000)
    assert raw.answer()[0] == 431
    assert ok(live, connect)


def test_long_url_is_bounded(live, connect):
    status, body = connect(live).send(b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n").answer()
    assert (status, body["error"]["code"]) == (431, "headers_too_large")


def test_slow_head_and_slow_body_time_out(make_live, connect):
    live = make_live(receive_timeout=0.2)
    status, body = connect(live).send(b"GET /health HT").answer()
    assert (status, body["error"]["code"]) == (408, "timeout")
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
    status, body = connect(live).send(head + b"{").answer()
    assert (status, body["error"]["code"]) == (408, "timeout")
    silent = connect(live)
    assert silent.sock.recv(100) == b""


def test_fifty_megabytes_are_refused_and_the_connection_survives(live, connect):
    """Bad input: a 50 MB body is answered immediately; the rest is discarded, not stored."""
    raw = connect(live)
    size = 50 << 20
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n".encode()
    raw.send(head)
    first = raw.until(b"request_too_large")
    assert first.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"request_too_large' in first
    chunk = b"x" * (1 << 20)
    for _ in range(50):
        raw.send(chunk)
    raw.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert raw.answer()[0] == 200


def test_http_1_0_gets_no_chunks(live, connect):
    """Chunks exist since HTTP/1.1; a 1.0 client would read their sizes as text."""
    answer = (
        connect(live)
        .send(STREAM.replace(b"HTTP/1.1", b"HTTP/1.0"))
        .until(b"nothing ends it but the connection")
    )
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert body.startswith(b"data: {")
    assert body.endswith(b"data: [DONE]\n\n")
    health = (
        connect(live)
        .send(b"GET /health HTTP/1.0\r\n\r\n")
        .until(b"nothing ends it but the connection")
    )
    assert health.endswith(b'\r\n\r\n{"status":"ok"}')


@pytest.mark.parametrize("late", [b"x", b"x" * 10])
def test_body_after_its_answer_does_not_keep_the_connection(late, make_live, connect):
    """Idle connections are closed; one with a late or partial body stayed open indefinitely."""
    raw = connect(make_live(keep_alive_timeout=1))
    raw.send(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n").until(
        b"unknown_url"
    )
    assert not raw.send(late).until(b"another answer").startswith(b"HTTP")


def test_late_body_leaves_the_next_request_its_time(make_live, connect):
    live = make_live(keep_alive_timeout=1)
    raw = connect(live)
    raw.send(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n").until(
        b"unknown_url"
    )
    live.call(lambda: setattr(live.engine, "step_s", 1.5 / len(ANSWER)))
    raw.send(b"x" * 10 + STREAM)
    assert b"[DONE]" in raw.until(b"[DONE]")


def test_client_that_leaves_several_requests_behind_is_noticed(live, connect, eventually):
    """Disconnect: the request that runs is aborted, whatever was pipelined after it."""
    live.call(lambda: setattr(live.engine, "endless", True))
    raw = connect(live)
    raw.send(STREAM + STREAM).until(b"data: ")
    raw.sock.close()
    eventually(lambda: list(live.engine.ended.values()) == ["aborted"])
    eventually(lambda: not live.state.active)


def test_expect_continue_is_answered_with_413_before_any_body(live, connect):
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 52428800\r\nExpect: 100-continue\r\n"
        b"Connection: close\r\n\r\n"
    )
    status, _ = connect(live).send(head).answer()
    assert status == 413


def test_slow_reader_does_not_disturb_others(live, client, eventually, connect):
    live.call(lambda: setattr(live.engine, "endless", True))
    raw = connect(live)
    raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    body = b'{"prompt":"x","stream":true,"max_tokens":1000}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    raw.send(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    eventually(lambda: len(live.engine.running) == 1)
    chunks = client.completions.create(model="fake", prompt="hi", stream=True)
    texts = [next(chunks).choices[0].text for _ in range(500)]
    assert "".join(texts).startswith(ANSWER * 2)
    chunks.close()
    raw.sock.close()
    eventually(lambda: sorted(live.engine.ended.values()) == ["aborted", "aborted"])


def test_many_streams_at_once(live):
    results: list[str] = []

    def run() -> None:
        with openai.OpenAI(base_url=live.url + "/v1", api_key="none") as one:
            chunks = one.completions.create(model="fake", prompt="hi", max_tokens=30, stream=True)
            results.append("".join(chunk.choices[0].text for chunk in chunks))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert results == [ANSWER] * 8


def test_websocket_upgrade_is_no_way_in(make_live, connect):
    live = make_live(api_key=("k",))
    request = (
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    assert connect(live).send(request).answer()[0] == 401


def test_unix_socket(make_live, tmp_path):
    live = make_live(uds=str(tmp_path / "s"))
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(live.settings.uds)
        request = b"GET /v1/models HTTP/1.1\r\nHost: any.name\r\nConnection: close\r\n\r\n"
        assert Raw(sock).send(request).answer()[0] == 200
