"""A flood of requests is worked on a few per turn of the event loop, and probes overtake it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading

import pytest

from tenonry.errors import QueueFullError
from tenonry_openai_server import http_server
from tenonry_openai_server.http_server import MAX_PARSED_PER_TURN
from tenonry_openai_server.loop_throttle import LoopThrottle


def test_work_waits_in_order_of_arrival():
    async def main() -> tuple[list[int], list[int]]:
        turns, done, per_turn = LoopThrottle(3), [], []
        for number in range(10):
            if turns.take():
                done.append(number)
            else:
                turns.wait(lambda number=number: done.append(number))
        while len(done) < 10:
            before = len(done)
            await asyncio.sleep(0)
            per_turn.append(len(done) - before)
        return done, per_turn

    done, per_turn = asyncio.run(main())
    assert done == list(range(10))
    assert [count for count in per_turn if count] == [3, 3, 1]


def test_turns_without_work_schedule_nothing():
    async def main() -> bool:
        turns = LoopThrottle(1)
        assert turns.take()
        assert not turns.take()
        await asyncio.sleep(0)
        assert turns.take()
        await asyncio.sleep(0)
        return turns._is_scheduled

    assert asyncio.run(main()) is False


class Transport(asyncio.Transport):
    """Transport that collects written bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_reading_paused = False
        self.is_closed = False

    def write(self, data) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        self.is_reading_paused = False

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def get_extra_info(self, name, default=None):
        return default


HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def completion(prompt: str) -> bytes:
    body = json.dumps({"prompt": prompt, "max_tokens": 1}).encode()
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    )
    return head + body


@pytest.fixture
def connect(api):
    """Returns a function that opens a connection to a server over the application."""
    server = http_server.make_server(api.app, api.state.settings)
    made = []

    def open_connection() -> tuple[http_server.BoundedProtocol, Transport]:
        protocol = server.config.http_protocol_class(
            config=server.config, server_state=server.server_state, app_state={}
        )
        transport = Transport()
        protocol.connection_made(transport)
        made.append(protocol)
        return protocol, transport

    yield open_connection

    async def close() -> None:
        for protocol in made:
            protocol.connection_lost(None)

    api.run(close())


def test_flood_is_parsed_in_turns_and_probes_overtake_it(api, connect, monkeypatch):
    started_per_turn = [0]
    start = http_server.BoundedProtocol._start_asgi_task

    def count(protocol, cycle, app) -> None:
        started_per_turn[-1] += 1
        start(protocol, cycle, app)

    async def main() -> None:
        connections = [connect() for _ in range(300)]
        monkeypatch.setattr(http_server.BoundedProtocol, "_start_asgi_task", count)
        for number, (protocol, _) in enumerate(connections):
            protocol.data_received(completion(f"p{number}"))
        assert started_per_turn == [MAX_PARSED_PER_TURN]
        assert (
            sum(transport.is_reading_paused for _, transport in connections)
            == 300 - MAX_PARSED_PER_TURN
        )
        probe, probe_transport = connect()
        probe.data_received(HEALTH)
        async with asyncio.timeout(20):
            while not all(b"text_completion" in transport.written for _, transport in connections):
                if probe_transport.written and not flood_when_probed:
                    flood_when_probed.append(sum(started_per_turn))
                await asyncio.sleep(0)
                started_per_turn.append(0)

    flood_when_probed: list[int] = []
    api.run(main())
    assert sum(started_per_turn) == 300 + 1  # with the probe
    assert max(started_per_turn[1:]) <= MAX_PARSED_PER_TURN
    assert flood_when_probed[0] < 300
    assert [call.prompt for call in api.engine.received] == [f"p{number}" for number in range(300)]


def test_waiting_requests_keep_their_connection_and_lost_ones_are_forgotten(api, connect):
    async def main() -> None:
        first = [connect() for _ in range(MAX_PARSED_PER_TURN)]
        for protocol, _ in first:
            protocol.data_received(completion("early"))
        (waiting, kept), (lost, _) = connect(), connect()
        split = completion("waits")
        waiting.data_received(split[:50])
        waiting.data_received(split[50:])
        lost.data_received(completion("lost"))
        waiting.timeout_keep_alive_handler()
        waiting._too_slow()
        assert not kept.is_closed
        assert not kept.written
        lost.connection_lost(None)
        async with asyncio.timeout(20):
            while b"text_completion" not in kept.written:  # noqa: ASYNC110  a test looks from outside
                await asyncio.sleep(0.001)
        assert not kept.is_reading_paused

    api.run(main())
    prompts = [call.prompt for call in api.engine.received]
    assert prompts.count("waits") == 1
    assert "lost" not in prompts


def test_full_server_refuses_before_it_reads_the_body(api):
    """A flood beyond the capacity costs no parsing."""
    api.engine.capacity_error = QueueFullError("5000 requests run or wait", 2.2)
    for path in ("/v1/completions", "/v1/chat/completions"):
        response = api.request("POST", path, content=b"no JSON at all")
        assert response.status_code == 429
        assert response.json()["error"]["code"] == "queue_full"
    assert not api.engine.received


def test_flood_over_real_sockets_is_served_whole(live):
    """Every request gets its answer, and so does a probe in between."""
    statuses: list[bytes] = []

    def ask(data: bytes, count: int) -> None:
        with socket.create_connection(("127.0.0.1", live.port), timeout=20) as sock:
            for _ in range(count):
                sock.sendall(data)
                answer = b""
                while b"}" not in answer:
                    answer += sock.recv(65536)
                statuses.append(answer[:12])

    threads = [
        threading.Thread(target=ask, args=(data, 5))
        for data in [completion("x")] * 40 + [HEALTH] * 2
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert statuses == [b"HTTP/1.1 200"] * 42 * 5
