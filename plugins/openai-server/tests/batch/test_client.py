"""Asking again, over real connections to a server of the tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from tenonry.errors import LaunchError, TenonryError
from tenonry_openai_server.batch import client as client_module
from tenonry_openai_server.batch.answers import AnswerFile
from tenonry_openai_server.batch.client import BatchClient
from tenonry_openai_server.batch.requests import Request
from tenonry_openai_server.batch.run import BatchRun


class ScriptedServer(ThreadingHTTPServer):
    """Answers with the next status of `script`, then with 200; "cut" closes the connection without an answer."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: list[int | str] = []
        self.asked: list[str] = []
        self.headers: dict[str, str] = {}


class Handler(BaseHTTPRequestHandler):
    server: ScriptedServer

    def do_POST(self) -> None:
        self.server.asked.append(self.rfile.read(int(self.headers["content-length"])).decode())
        status = self.server.script.pop(0) if self.server.script else 200
        if isinstance(status, str):
            self.connection.close()
            return
        self.send_response(status)
        for name, value in {"x-request-id": "r1", **self.server.headers}.items():
            self.send_header(name, value)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_) -> None:
        """Nothing is logged."""


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    found = ScriptedServer()
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


@pytest.fixture
def waits(monkeypatch) -> list[float]:
    """The seconds that were waited between attempts; none really are."""
    seen: list[float] = []

    async def sleep(seconds: float) -> None:
        seen.append(seconds)

    monkeypatch.setattr(client_module.asyncio, "sleep", sleep)
    return seen


def request(name: str) -> Request:
    return Request(name, "/v1/completions", name.encode(), f"batch_req_{name}")


def with_client(server: ScriptedServer, use, attempts: int = 4, check=lambda: None):
    async def go():
        url = f"http://127.0.0.1:{server.server_address[1]}"
        async with httpx.AsyncClient(base_url=url) as http:
            return await use(BatchClient(http, attempts, check))

    return asyncio.run(go())


@pytest.mark.parametrize("script", [[429], [503, 502], ["cut", 504]])
def test_a_busy_or_lost_server_is_asked_again(server, waits, script):
    server.script = list(script)
    reply = with_client(server, lambda client: client.ask(request("a")))
    assert reply == (200, "r1", b"{}")
    assert server.asked == ["a"] * (len(script) + 1)
    assert len(waits) == len(script)
    assert all(0.5 * 2**n <= wait <= 0.65 * 2**n for n, wait in enumerate(waits))


def test_the_time_that_the_server_names_is_waited(server, waits):
    server.script = [503]
    server.headers = {"retry-after": "7"}
    with_client(server, lambda client: client.ask(request("a")))
    assert 7 <= waits[0] <= 8.75


@pytest.mark.parametrize("status", [400, 404, 500])
def test_other_errors_are_answers(server, waits, status):
    server.script = [status]
    assert with_client(server, lambda client: client.ask(request("a"))).status == status
    assert waits == []


def test_no_answer_says_why(server, waits):
    server.script = [503] * 4
    reply = with_client(server, lambda client: client.ask(request("a")))
    assert reply == (0, "", b"HTTP 503: {}")
    assert len(waits) == 3  # not after the last


def test_a_server_that_ended_is_not_waited_for(server, waits):
    def ended() -> None:
        raise LaunchError("it ended")

    server.script = ["cut"]
    with pytest.raises(LaunchError, match="it ended"):
        with_client(server, lambda client: client.ask(request("a")), check=ended)
    with pytest.raises(LaunchError, match="it ended"):
        with_client(server, lambda client: client.wait_until_ready(1), check=ended)


class Bar:
    def update(self) -> None:
        pass

    def set_postfix(self, **_) -> None:
        pass


def run_all(server, path, names, concurrency=3, **options):
    requests = [request(name) for name in names]
    with AnswerFile(path, {one.custom_id: one.id for one in requests}) as answers:
        missing = iter([one for one in requests if one.custom_id not in answers.done])
        with_client(
            server,
            lambda client: BatchRun(client, answers, Bar()).run(missing, concurrency),
            **options,
        )
        return answers.done


def test_every_request_is_asked_once_and_written(server, tmp_path):
    names = [f"n{number}" for number in range(40)]
    assert run_all(server, tmp_path / "out", names, 7) == set(names)
    assert sorted(server.asked) == sorted(names)


def test_an_unanswered_line_ends_the_run_and_the_next_run_asks_the_rest(server, tmp_path, waits):
    names = [f"n{number}" for number in range(20)]
    server.script = [200, 200, *[429] * 100]
    with pytest.raises(TenonryError, match=r"custom_id 'n\d+' got no answer \(HTTP 429"):
        run_all(server, tmp_path / "out", names)
    assert len(server.asked) <= 2 + 3 * 4  # no more than what was under way
    server.script = []
    server.asked.clear()
    assert run_all(server, tmp_path / "out", names) == set(names)
    assert len(server.asked) == 18


def test_the_cause_is_raised_bare(server, tmp_path, waits):
    def ended() -> None:
        raise LaunchError("it ended")

    server.script = ["cut"] * 9
    with pytest.raises(LaunchError, match="it ended"):
        run_all(server, tmp_path / "out", "abc", check=ended)
