"""`tenonry serve --api-server-count 2` in real processes: exact totals, the kill of each process, orderly ends (PM-1 to
PM-11).
"""

from __future__ import annotations

import concurrent.futures
import os
import signal
import socket
import time

import psutil
import pytest
from many_servers import SLOW, Stream, ask, on_each_server, total
from server_process import Server, eventually

from tenonry_testkit.kernel import forked

pytestmark = pytest.mark.timeout(120)  # as in test_openai_server


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


@pytest.mark.nightly
def test_killed_server_stops_everything_if_that_is_the_policy(start):
    server = start("--api-server-death", "stop", *SLOW).ready()
    streams = on_each_server(server, 1)
    pid = server.pids()["api-server 2"]
    os.kill(pid, signal.SIGKILL)
    assert server.end() == 1
    assert f"stopping: api-server 2 (pid {pid}) ended with signal SIGKILL" in server.output
    assert {stream.end() for stream in streams["api-server 1"]} == {"abort"}


@pytest.mark.nightly
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


@pytest.mark.nightly
def test_killed_engine_takes_its_own_streams_and_the_last_one_everything(start):
    """With engines that do not restart."""
    server = start("--data-parallel-size", "2", "--engine-death", "stop", *SLOW).ready()
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
    eventually(lambda: server.output.count("stopping: waiting up to") == 2)
    server.process.send_signal(signal.SIGTERM)
    assert {stream.end() for some in streams.values() for stream in some} == {"abort"}
    assert server.end() == 0


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--ssl-certfile", "/nowhere.pem"), "ssl_certfile=/nowhere.pem"),
        (("--scheduler", "batchin"), "did you mean 'batching'?"),
    ],
)
def test_start_that_cannot_work_is_one_line_and_status_1(start, arguments, named):
    """PM-7. A fork begins so early that it may still be starting when its server exits with the error."""
    server = start(*arguments, kind=Server)
    assert server.end() == 1
    (line,) = [line for line in server.lines if line.startswith("tenonry: error: ")]
    assert named in line
    assert "Traceback" not in server.output


@pytest.mark.nightly
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


@pytest.mark.nightly
def test_supervisor_killed_while_the_engines_load_leaves_nothing(start):
    server = start("--worker", "torch", "--device", "cpu")
    server.wait_for(r"(\[engine 0\])")
    eventually(lambda: len(server.pids()) == 5)  # with a fork server; once each has its title
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
