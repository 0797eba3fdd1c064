from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenonry.errors import ConfigError
from tenonry_bench.sse import ChunkDecoder, Client, Endpoint, EventSplitter, HttpFailure

PAYLOADS = st.lists(st.binary(min_size=1, max_size=40), max_size=6)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """`data` in pieces, cut at the given places."""
    ends = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(ends)]


@given(
    PAYLOADS, st.lists(st.integers(0, 10_000), max_size=20), st.sampled_from([b"", b";name=value"])
)
def test_chunked_bodies_come_out_whole_however_they_are_cut(payloads, places, extension):
    coded = (
        b"".join(b"%x%s\r\n%s\r\n" % (len(part), extension, part) for part in payloads)
        + b"0\r\n\r\n"
    )
    decoder = ChunkDecoder()
    assert b"".join(map(decoder.feed, cut(coded, places))) == b"".join(payloads)
    assert decoder.done


def test_an_open_chunked_body_is_not_done():
    decoder = ChunkDecoder()
    assert decoder.feed(b"3\r\nab") == b"ab"
    assert not decoder.done


def test_a_bad_chunk_size_is_an_error():
    with pytest.raises(HttpFailure, match="not the size of a chunk: b'zz'"):
        ChunkDecoder().feed(b"zz\r\n")


@given(st.lists(st.integers(0, 10_000), max_size=20), st.sampled_from([b"\n", b"\r\n"]))
def test_events_come_out_whole_however_they_are_cut(places, end):
    stream = end.join(
        [b"data: one", b"", b": a comment", b"", b"event: x", b"data:two", b"data: three", b"", b""]
    )
    splitter = EventSplitter()
    events = [event for piece in cut(stream, places) for event in splitter.feed(piece)]
    assert events == [b"one", b"two\nthree"]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8000", Endpoint("127.0.0.1", 8000, False, "")),
        ("http://host/v1/", Endpoint("host", 80, False, "")),
        ("https://host/proxy/v1", Endpoint("host", 443, True, "/proxy")),
    ],
)
def test_base_urls(url, expected):
    assert Endpoint.parse(url) == expected


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "http://", "http://host:port"])
def test_a_url_of_another_kind_is_refused(url):
    with pytest.raises(ConfigError, match="must look like http://"):
        Endpoint.parse(url)


def collect(url: str, api_key: str | None = None) -> list:
    async def go() -> list:
        return [
            chunk
            async for _, chunk in Client(Endpoint.parse(url), api_key).stream(
                "/v1/completions", b"{}"
            )
        ]

    return asyncio.run(go())


def test_a_stream_ends_at_done_and_carries_the_key(serve, answers):
    server = serve(
        lambda *_: answers.chunked(
            b'data: {"choices":[{}]}\n\n', b"data: [DONE]\n\n", b"data: {}\n\n"
        )
    )
    assert len(collect(server.url, "secret")) == 1
    method, path, headers, body = server.requests[0]
    assert method == "POST"
    assert path == "/v1/completions"
    assert headers["authorization"] == "bearer secret"
    assert body == b"{}"


def test_a_body_without_length_ends_with_the_connection(serve):
    server = serve(
        lambda *_: [
            b"HTTP/1.1 200 OK\r\n\r\n",
            b'data: {"choices":[{}]}\n\n',
            b'data: {"choices":[]}\n\n',
        ]
    )
    assert [len(chunk.choices) for chunk in collect(server.url)] == [1, 0]


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        ([b"HTTP/1.1 429 Slow\r\nContent-Length: 4\r\n\r\nwait"], HttpFailure, "status 429: wait"),
        ([b"SSH-2.0\r\n\r\n"], HttpFailure, "not HTTP"),
        (
            [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"5\r\nda"],
            ConnectionError,
            "middle of a body",
        ),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nda"], ConnectionError, "middle of a body"),
        ([b"HTTP/1.1"], ConnectionError, "after 8 bytes"),
    ],
)
def test_answers_that_are_none(serve, reply, error, message):
    server = serve(lambda *_: reply)
    with pytest.raises(error, match=message):
        collect(server.url)


def test_an_error_within_a_stream(serve, answers):
    server = serve(lambda *_: answers.chunked(b'data: {"error":{"message":"engine died"}}\n\n'))
    with pytest.raises(HttpFailure, match="engine died"):
        collect(server.url)


@pytest.mark.parametrize(
    ("url", "authority"),
    [("http://127.0.0.1:8000", "127.0.0.1:8000"), ("http://[::1]:8000/v1", "[::1]:8000")],
)
def test_the_host_header_has_ipv6_in_brackets(url, authority):
    assert Endpoint.parse(url).authority == authority
