"""`tenonry serve --api-server-count 2` in real processes: exact totals, the kill of each process, orderly ends (PM-1 to
PM-11).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from server_process import ForkedServer, Server, eventually

from tenonry_testkit.kernel import forked

pytestmark = pytest.mark.timeout(120)  # as in test_openai_server
SLOW = ("--worker-option", "step_ms=20")


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the instance puts its socket files."""
    return tmp_path_factory.mktemp("t")


@pytest.fixture
def start(text_model: Path, temporary: Path) -> Iterator[Callable[..., Server]]:
    """A function that starts two API servers; after the test no process and no socket file of theirs may exist."""
    servers: list[Server] = []
    seen: set[int] = set()

    def run(*arguments: str, kind: type[Server] = ForkedServer) -> Server:
        arguments = ("--worker", "null", "--api-server-count", "2", *arguments)
        servers.append(kind(text_model, *arguments, TMPDIR=str(temporary)))
        return servers[-1]

    yield run
    for server in servers:
        if server.process.poll() is None:
            seen |= set(server.pids().values())
        server.close()
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in seen))
    eventually(lambda: list(temporary.iterdir()) == [])


class Stream(threading.Thread):
    """A client on a connection of its own, so that the test can find the server that answers it."""

    def __init__(self, server: Server, max_tokens: int = 400, **extra: object) -> None:
        super().__init__(daemon=True)
        host, port = server.url.removeprefix("http://").split(":")
        self.connection = http.client.HTTPConnection(host, int(port), timeout=30)
        self.body = {
            "prompt": "x",
            "max_tokens": max_tokens,
            "stream": True,
            "ignore_eos": True,
            **extra,
        }
        self.headers = {"content-type": "application/json"}
        self.events: list[dict] = []
        self.connection.connect()
        self.port = self.connection.sock.getsockname()[1]

    def begin(self, **headers: str) -> Stream:
        self.headers |= headers
        self.start()
        eventually(lambda: self.events or not self.is_alive())
        return self

    def run(self) -> None:
        with (
            contextlib.closing(self.connection),
            contextlib.suppress(OSError, http.client.HTTPException),
        ):
            self.connection.request("POST", "/v1/completions", json.dumps(self.body), self.headers)
            for line in self.connection.getresponse():
                data = line.decode().removeprefix("data: ").strip()
                if data and data != "[DONE]":
                    self.events.append(json.loads(data))

    def server_of(self, pids: dict[str, int]) -> str:
        """The name of the process at the other end of the connection."""
        for name, pid in pids.items():
            if name.startswith("api-server"):
                for connection in psutil.Process(pid).net_connections("tcp"):
                    if connection.raddr and connection.raddr.port == self.port:
                        return name
        return ""

    def end(self) -> str:
        """Read to the end; return its finish reason, the code of its error, or "broken"."""
        self.join(30)
        assert not self.is_alive()
        last = self.events[-1] if self.events else {"choices": [{"finish_reason": None}]}
        return (
            last["error"]["code"]
            if "error" in last
            else last["choices"][0]["finish_reason"] or "broken"
        )


def on_each_server(
    server: Server, count: int = 2, max_tokens: int = 250, **headers: str
) -> dict[str, list[Stream]]:
    """Start streams until at least `count` run on each API server."""
    streams: dict[str, list[Stream]] = {"api-server 1": [], "api-server 2": []}
    pids = server.pids()
    for _ in range(60):
        stream = Stream(server, max_tokens).begin(**headers)
        streams[stream.server_of(pids)].append(stream)
        if all(len(some) >= count for some in streams.values()):
            return streams
    raise AssertionError({name: len(some) for name, some in streams.items()})


def total(server: Server, name: str, **labels: str) -> float:
    """The sum of a metric over all engines."""
    values = re.findall(rf"^tenonry:{name}{{(.*)}} (\S+)$", server.get("/metrics")[1], re.MULTILINE)
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return sum(float(value) for found, value in values if all(label in found for label in wanted))


def ask(server: Server) -> int:
    """Return the HTTP status of a short request."""
    stream = Stream(server, 2, stream=False)
    stream.connection.request("POST", "/v1/completions", json.dumps(stream.body), stream.headers)
    status = stream.connection.getresponse().status
    stream.connection.close()
    return status


def successor(server: Server, pid: int) -> int:
    """Wait for the process that replaces this one as API server 1."""
    eventually(lambda: server.pids().get("api-server 1", pid) != pid)
    return server.pids()["api-server 1"]


# ---------------------------------------------------------------------------------------------------------- numbers


def test_totals_of_all_servers_are_exact_wherever_one_asks(start):
    """The official client, 64 streams over two API servers and two engines (PM-2, SL-1)."""
    server = start("--data-parallel-size", "2").ready()

    def complete(number: int) -> tuple[int, int]:
        chunks = list(client.completions.create(
            model="tiny", prompt="x" * (number + 1), max_tokens=number % 7 + 3, stream=True,
            stream_options={"include_usage": True}, extra_body={"ignore_eos": True, "return_token_ids": True},
        ))  # fmt: skip
        tokens = sum(len(choice.token_ids) for chunk in chunks for choice in chunk.choices)
        assert chunks[-1].usage.completion_tokens == tokens == number % 7 + 3
        return chunks[-1].usage.prompt_tokens, tokens

    with server.client() as client, concurrent.futures.ThreadPoolExecutor(64) as pool:
        counts = list(pool.map(complete, range(64)))
    prompt, generated = (sum(column) for column in zip(*counts, strict=True))
    os.kill(
        server.pids()["api-server 2"], signal.SIGINT
    )  # Ctrl-C at a terminal reaches it, too, and is ignored
    for _ in range(4):  # each on a connection of its own
        assert total(server, "prompt_tokens_total") == prompt == 64 * 65 / 2
        assert total(server, "generation_tokens_total") == generated
        assert total(server, "request_success_total") == 64
        assert total(server, "request_success_total", finished_reason="length") == 64
    for engine in "01":
        assert total(server, "generation_tokens_total", engine=engine) > 0
    for index in (1, 2):
        server.wait_for(rf"(\[api-server {index}\] 127\.0\.0\.1)")
    eventually(lambda: total(server, "num_requests_running") == 0)
    roles = sorted(server.pids())
    assert roles == ["api-server 1", "api-server 2", "coordinator", "engine 0", "engine 1"]
    assert (
        "".join(psutil.Process(server.process.pid).cmdline()).rstrip("\0 ") == "tenonry: supervisor"
    )
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0


# ---------------------------------------------------------------------------------------------------- a server dies


def test_killed_server_is_restarted_and_nobody_else_notices(start):
    server = start(*SLOW).ready()
    streams = on_each_server(server)
    before = server.pids()
    os.kill(before["api-server 1"], signal.SIGKILL)
    assert {stream.end() for stream in streams["api-server 1"]} == {"broken"}
    server.wait_for(rf"(api-server 1 \(pid {before['api-server 1']}\) ended with signal SIGKILL)")
    kept = streams["api-server 2"]
    eventually(
        lambda: total(server, "num_requests_running") == sum(stream.is_alive() for stream in kept)
    )
    server.wait_for("(api-server 1 serves again)")
    after = server.pids()
    assert after.pop("api-server 1") != before.pop("api-server 1")
    assert after == before
    more = on_each_server(server, 1, max_tokens=100)
    assert {stream.end() for stream in kept} == {"length"}
    server.process.send_signal(signal.SIGTERM)  # running requests may finish
    assert {stream.end() for some in more.values() for stream in some} == {"length"}
    assert server.end() == 0
    assert "Traceback" not in server.output


def test_killed_server_stops_everything_if_that_is_the_policy(start):
    server = start("--api-server-death", "stop", *SLOW).ready()
    streams = on_each_server(server, 1)
    pid = server.pids()["api-server 2"]
    os.kill(pid, signal.SIGKILL)
    assert server.end() == 1
    assert f"stopping: api-server 2 (pid {pid}) ended with signal SIGKILL" in server.output
    assert {stream.end() for stream in streams["api-server 1"]} == {"abort"}


def test_server_that_ends_is_replaced_until_it_ends_too_often(temporary, start):
    """On SIGTERM it ends in order, and the Unix socket, which all servers share, remains."""
    path = temporary / "s"
    server = start("--uds", str(path))
    server.wait_for("(ready at unix:)")
    pid = server.pids()["api-server 1"]
    os.kill(pid, signal.SIGTERM)
    server.wait_for("(api-server 1 serves again)")
    assert f"api-server 1 (pid {pid}) ended with exit code 0" in server.output
    for _ in range(8):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"GET /ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 200")
    for _ in range(3):
        pid = successor(server, pid)
        os.kill(pid, signal.SIGKILL)
    assert server.end() == 1
    assert (
        f"api-server 1 (pid {pid}) ended with signal SIGKILL; it was restarted 3 times within 60 s"
        in server.output
    )


# --------------------------------------------------------------------------------------------------- an engine dies


def test_killed_engine_takes_its_own_streams_and_the_last_one_everything(start):
    server = start("--data-parallel-size", "2", *SLOW).ready()
    pids = server.pids()
    # Both API servers have heard of the death when these have ended.
    lost = on_each_server(server, max_tokens=400, **{"x-data-parallel-rank": "0"})
    of_live_engine = [Stream(server, 150).begin(**{"x-data-parallel-rank": "1"}) for _ in range(4)]
    os.kill(pids["engine 0"], signal.SIGKILL)
    assert {stream.end() for some in lost.values() for stream in some} == {"engine_dead"}
    assert {ask(server) for _ in range(4)} == {200}
    assert {stream.end() for stream in of_live_engine} == {"length"}
    last = [Stream(server).begin() for _ in range(4)]
    os.kill(pids["engine 1"], signal.SIGKILL)
    assert {stream.end() for stream in last} == {"engine_dead"}
    assert server.end() == 1
    assert f"stopping: engine 1 (pid {pids['engine 1']}) ended with signal SIGKILL" in server.output
    assert "Traceback" not in server.output


# ----------------------------------------------------------------------------------------------- the supervisor ends


def test_killed_supervisor_leaves_nothing(start):
    """Q6: nothing outlives the process that owns it; the fixture checks for files."""
    server = start(*SLOW).ready()
    pids = server.pids()
    streams = on_each_server(server, 1)
    server.process.kill()
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids.values()))
    assert {stream.end() for some in streams.values() for stream in some} == {"broken"}
    server.end()


def test_second_signal_aborts_what_runs(start):
    server = start(*SLOW).ready()
    streams = on_each_server(server, 1)
    server.process.send_signal(signal.SIGTERM)
    eventually(lambda: server.output.count("requests may finish") == 2)
    server.process.send_signal(signal.SIGTERM)
    assert {stream.end() for some in streams.values() for stream in some} == {"abort"}
    assert server.end() == 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--ssl-certfile", "/nowhere.pem"), "ssl_certfile=/nowhere.pem"),
        (("--scheduler", "batchin"), "did you mean 'batching'?"),
    ],
)
def test_start_that_cannot_work_is_one_line_and_status_1(start, arguments, named):
    """PM-7. A fork begins so early that it may still be starting when its server gives up, and says so."""
    server = start(*arguments, kind=Server)
    assert server.end() == 1
    (line,) = [line for line in server.lines if line.startswith("tenonry: error: ")]
    assert named in line
    assert "Traceback" not in server.output


def test_forks_that_have_hardly_begun_end_with_their_server_and_say_nothing(start, monkeypatch):
    """The first fails at once; the second is stopped before it forgot its parent's handlers, and was registered."""
    begun = [0]
    fork_child = forked.ForkedChild._execute_child
    forget_handlers = forked.forget_handlers

    def fork_slowly(*arguments: object) -> None:
        begun[0] += 1
        fork_child(*arguments)
        time.sleep(1)

    def forget_late() -> None:
        if begun[0] == 2:
            time.sleep(20)
        forget_handlers()

    monkeypatch.setattr(forked.ForkedChild, "_execute_child", fork_slowly)
    monkeypatch.setattr(forked, "forget_handlers", forget_late)
    server = start("--ssl-certfile", "/nowhere.pem")
    assert server.end() == 1
    assert "api-server 1" in server.output
    assert "Traceback" not in server.output
    with pytest.raises(ProcessLookupError):
        os.killpg(server.process.pid, 0)


def test_supervisor_killed_while_the_engines_load_leaves_nothing(start):
    server = start("--worker", "torch", "--device", "cpu")
    server.wait_for(r"(\[engine 0\])")
    eventually(lambda: len(server.pids()) == 4)  # once each has its title
    pids = server.pids()
    server.process.kill()
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids.values()))
    server.end()


def test_sigterm_while_the_model_loads_ends_at_once(start):
    server = start("--worker", "torch", "--device", "cpu")
    server.wait_for(r"(loading) ")
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0
    assert "Traceback" not in server.output
