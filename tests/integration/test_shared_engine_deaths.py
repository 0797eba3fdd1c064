"""Engines of several API servers are killed and restarted: streams of every server continue (AF-24)."""

from __future__ import annotations

import os
import signal

import psutil
import pytest
from many_servers import SLOW, Stream, ask, on_each_server, texts, total
from server_process import Server, eventually

pytestmark = pytest.mark.timeout(120)  # as in test_openai_server


def deaths(server: Server) -> list[float]:
    """Deaths of engines, and how often they were started again."""
    return [total(server, f"engine_{what}_total") for what in ("deaths", "restarts")]


def test_killed_engine_is_started_again_and_streams_of_all_servers_go_on(start):
    """Each server resends its own requests; the recovery counts once (AF-24)."""
    server = start("--worker-option", "step_ms=5").ready()
    whole = Stream(server).begin()
    assert whole.end() == "length"
    (text,) = texts({"": [whole]})
    streams = on_each_server(server, max_tokens=400)
    os.kill(server.pids()["engine 0"], signal.SIGKILL)
    assert {ask(server) for _ in range(4)} == {200}  # they wait
    assert {stream.end() for some in streams.values() for stream in some} == {"length"}
    assert texts(streams) == {text}
    assert deaths(server) == [1, 1]
    assert total(server, "requests_continued_total") >= 4
    server.wait_for("(engine 0 serves again)")
    assert "engine 0 epoch 2" in server.pids()
    again = on_each_server(server, max_tokens=100)
    os.kill(server.pids()["engine 0 epoch 2"], signal.SIGKILL)
    assert {stream.end() for some in again.values() for stream in some} == {"length"}
    assert deaths(server) == [2, 2]
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0
    assert "Traceback" not in server.output


def num_files(server: Server) -> dict[str, int]:
    """Open files of the supervisor and of the API servers, without connections of clients."""
    pids = {name: pid for name, pid in server.pids().items() if name.startswith("api-server")}
    pids["supervisor"] = server.process.pid
    found = {name: psutil.Process(pid) for name, pid in pids.items()}
    return {name: one.num_fds() - len(one.net_connections("tcp")) for name, one in found.items()}


@pytest.mark.nightly
def test_restarts_leave_no_file_open(start):
    """Neither in the supervisor, nor in the servers that it connects to the engine."""
    server = start("--worker-option", "step_ms=5").ready()

    def serve() -> None:
        streams = on_each_server(server)
        assert {stream.end() for some in streams.values() for stream in some} == {"length"}

    serve()
    before = num_files(server)
    for name in ("engine 0", "engine 0 epoch 2", "engine 0 epoch 3"):
        os.kill(server.pids()[name], signal.SIGKILL)
        serve()
        eventually(lambda: num_files(server) == before)


@pytest.mark.nightly
def test_one_that_stands_by_takes_over_for_all_servers(start):
    """The engine is back without a start, under its number (AF-28)."""
    server = start("--worker-option", "step_ms=5", "--standby-engines", "1").ready()
    whole = Stream(server).begin()
    assert whole.end() == "length"
    (text,) = texts({"": [whole]})
    eventually(lambda: total(server, "standby_engines") == 1)
    pids = server.pids()
    streams = on_each_server(server, max_tokens=400)
    os.kill(pids["engine 0"], signal.SIGKILL)
    assert {stream.end() for some in streams.values() for stream in some} == {"length"}
    assert texts(streams) == {text}
    assert server.pids()["engine 0 epoch 3"] == pids["standby 1"]
    assert deaths(server) == [1, 1]
    assert total(server, "engine_takeovers_total") == 1
    eventually(lambda: "standby 2" in server.pids())
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0
    assert "Traceback" not in server.output


def test_killed_engine_of_two_moves_its_streams_to_the_other(start):
    server = start("--data-parallel-size", "2", "--worker-option", "step_ms=5").ready()
    streams = on_each_server(server, max_tokens=400)
    os.kill(server.pids()["engine 1"], signal.SIGKILL)
    assert {stream.end() for some in streams.values() for stream in some} == {"length"}
    assert len(texts(streams)) == 1
    server.wait_for("(engine 1 serves again)")
    pinned = [Stream(server, 20).begin(**{"x-data-parallel-rank": "1"}) for _ in range(4)]
    assert {stream.end() for stream in pinned} == {"length"}


@pytest.mark.nightly
def test_suspects_of_all_servers_are_tried_one_after_the_other(start):
    """Two deaths in a row make them all suspects; none of them kills, so that all continue."""
    server = start("--worker-option", "step_ms=100").ready()
    streams = on_each_server(server, count=1, max_tokens=100)
    os.kill(server.pids()["engine 0"], signal.SIGKILL)
    server.wait_for("(engine 0 serves again)")
    running = [stream for some in streams.values() for stream in some]
    seen = [len(stream.events) for stream in running]
    # An engine that ended before it had begun a request makes no suspects.
    eventually(lambda: all(len(stream.events) > n for stream, n in zip(running, seen, strict=True)))
    os.kill(server.pids()["engine 0 epoch 2"], signal.SIGKILL)
    assert {stream.end() for some in streams.values() for stream in some} == {"length"}
    assert len(texts(streams)) == 1
    assert server.output.count("retrying it in isolation") == sum(map(len, streams.values()))


@pytest.mark.nightly
def test_killed_server_while_an_engine_is_started_again(start):
    """The engine comes back for those that serve, and the server that is started again finds it."""
    server = start("--worker-option", "step_ms=5").ready()
    streams = on_each_server(server, max_tokens=400)
    pids = server.pids()
    os.kill(pids["engine 0"], signal.SIGKILL)
    os.kill(pids["api-server 1"], signal.SIGKILL)
    assert {stream.end() for stream in streams["api-server 2"]} == {"length"}
    server.wait_for("(api-server 1 serves again)")
    more = on_each_server(server, 1, max_tokens=50)
    assert {stream.end() for some in more.values() for stream in some} == {"length"}


def test_an_engine_that_is_given_up_ends_everything(start):
    server = start(*SLOW).ready()
    last = Stream(server).begin()
    title = "engine 0"
    for number in range(2, 6):
        seen = len(last.events)
        eventually(lambda least=seen + 20: len(last.events) > least)
        os.kill(server.pids()[title], signal.SIGKILL)
        title = f"engine 0 epoch {number}"
        if number < 5:
            eventually(lambda name=title: name in server.pids())
    assert last.end() == "engine_dead"
    assert server.end() == 1
    assert "it restarted 3 times in 60 s" in server.output
