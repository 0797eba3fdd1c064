from __future__ import annotations

import asyncio
import itertools
import json
import socket

import pytest

from tenonry.errors import ConfigError
from tenonry_bench.load import Load, LoadRun, Record, parse_limits
from tenonry_bench.sse import Client, Endpoint


def run_load(
    url: str, prompts, out_len: int, *, concurrency=2, rate=None, timeout_s=20.0
) -> LoadRun:
    load = Load(Client(Endpoint.parse(url)), "m", concurrency, rate, timeout_s=timeout_s)
    return asyncio.run(load.run(prompts, out_len))


def test_every_prompt_is_asked_once_and_timed(serve, answers):
    server = serve(lambda _method, _path, body: answers.completion(body))
    run = run_load(server.url, [[1, 2], [3, 4, 5], [6]], 4)
    assert run.errors() == {}
    assert [record.output_tokens for record in run.good] == [4, 4, 4]
    assert [record.prompt_tokens for record in run.good] == [2, 3, 1]
    for record in run.good:
        assert 0 < record.ttft_s <= record.e2e_s <= run.wall_s
        assert len(record.itl_s) <= 3
        assert record.ttft_s + sum(record.itl_s) == pytest.approx(record.e2e_s)
    bodies = [json.loads(body) for *_, body in server.requests]
    assert sorted(body["prompt"] for body in bodies) == [[1, 2], [3, 4, 5], [6]]
    assert all(
        body["ignore_eos"] and body["stream"] and body["temperature"] == 0 for body in bodies
    )


def test_failures_are_counted_by_their_reason(serve, answers):
    turns = itertools.count()

    def reply(_method, _path, body):
        turn = next(turns)
        if turn == 0:
            return answers.plain(429, b'{"error":{"message":"full"}}')
        if turn == 1:
            return answers.chunked(b'data: {"choices":[{}]}\n\n')[:-1]
        if turn == 2:
            return answers.completion(json.dumps({"max_tokens": 2}).encode())
        return answers.completion(body)

    run = run_load(serve(reply).url, [[1]] * 5, 3, concurrency=1)
    assert len(run.good) == 2
    reasons = sorted(run.errors())
    assert [text[:12] for text in reasons] == ["2 of 3 token", "ConnectionEr", "HttpFailure:"]
    assert sum(run.errors().values()) == 3


def test_a_request_without_end_is_given_up(serve):
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"
    server = serve(lambda *_: [head, *[b"data: {}\n\n"] * 5000])
    assert run_load(server.url, [[1]], 3, timeout_s=0.05).errors() == {"no end within 0.05 s": 1}


def test_nobody_there_is_a_failure_of_each_request():
    with socket.socket() as taken:  # bound, and not listening
        taken.bind(("127.0.0.1", 0))
        run = run_load(f"http://127.0.0.1:{taken.getsockname()[1]}", [[1], [2]], 1)
    assert run.good == []
    assert sum(run.errors().values()) == 2


def test_an_open_load_starts_at_random_times_that_are_always_the_same():
    load = Load(Client(Endpoint.parse("http://h")), "m", None, 10.0, timeout_s=1, seed=3)
    starts = load._starts(500)
    assert starts == Load(
        Client(Endpoint.parse("http://h")), "m", None, 10.0, timeout_s=1, seed=3
    )._starts(500)
    assert starts[0] == 0.0
    assert starts == sorted(starts)
    assert 30 < starts[-1] < 75  # 500 requests at 10 per second
    assert Load(Client(Endpoint.parse("http://h")), "m", 4, None, timeout_s=1)._starts(3) == [
        0.0,
        0.0,
        0.0,
    ]


RECORD = Record(ttft_s=0.1, e2e_s=0.5, itl_s=[0.1, 0.3], prompt_tokens=1, output_tokens=3)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, True),
        ({"ttft_ms": 100.0, "tpot_ms": 200.0, "e2e_ms": 500.0}, True),
        ({"ttft_ms": 99.0}, False),
        ({"tpot_ms": 199.0}, False),
        ({"itl_ms": 299.0}, False),
        ({"ttft_ms": 100.0, "e2e_ms": 499.0}, False),
    ],
)
def test_goodput_counts_what_meets_every_limit(limits, expected):
    assert RECORD.meets(limits) is expected


def test_a_failed_request_meets_no_limit():
    assert not Record(error="lost").meets({})


def test_gaps_are_taken_over_all_requests():
    run = LoadRun(
        1.0,
        [RECORD, Record(ttft_s=0.3, e2e_s=0.9, itl_s=[0.6], output_tokens=2), Record(error="lost")],
    )
    assert run.percentile_ms("itl_s", 1.0) == pytest.approx(600)
    assert run.percentile_ms("itl_s", 0.5) == pytest.approx(300)
    assert run.percentile_ms("ttft_s", 0.5) == pytest.approx(200)


def test_limits_are_read_and_refused():
    assert parse_limits(["ttft_ms=200", "itl_ms=50.5"]) == {"ttft_ms": 200.0, "itl_ms": 50.5}
    assert parse_limits(None) == {}
    with pytest.raises(ConfigError, match="the limits are ttft_ms"):
        parse_limits(["speed=3"])
    with pytest.raises(ConfigError, match="must look like ttft_ms=200"):
        parse_limits(["ttft_ms=fast"])
