"""`/ready` reports the state of engines: stopped, killed, restarted, busy with a long step (AF-25)."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request

import psutil
import pytest
from server_process import Server, Stream, eventually

pytestmark = pytest.mark.timeout(120)


def probe(server: Server) -> tuple[int, dict[str, str], str | None]:
    """Status, body and Retry-After of /ready."""
    try:
        with urllib.request.urlopen(server.url + "/ready", timeout=20) as response:
            return response.status, json.loads(response.read()), None
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read()), error.headers["retry-after"]


def stop(server: Server, title: str) -> int:
    """SIGSTOP; returns the process id."""
    pid = server.pids()[title]
    os.kill(pid, signal.SIGSTOP)
    answers = []

    def is_not_ready() -> bool:
        answers.append(probe(server))
        return answers[-1][0] == 503

    eventually(is_not_ready)
    _, body, retry_after = answers[-1]  # the next one might be of an engine that is taken for dead
    assert retry_after == "2"
    assert body == {"status": "stopped", "reason": f"stopped: {title} (pid {pid})"}
    return pid


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("is_busy", [False, True])
def test_a_stopped_engine(is_busy, serve):
    server = serve("--worker-option", "step_ms=5").ready()
    stream = Stream(server) if is_busy else None
    pid = stop(server, "engine 0")
    os.kill(pid, signal.SIGCONT)
    eventually(lambda: probe(server)[0] == 200)
    assert server.get("/health")[0] == 200
    if stream is not None:
        assert stream.end() == "length"


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("is_busy", [False, True])
def test_a_stopped_rank(is_busy, serve):
    server = serve("--worker-option", "step_ms=5", "--tensor-parallel-size", "2").ready()
    stream = Stream(server) if is_busy else None
    pid = stop(server, "worker 0.1")
    os.kill(pid, signal.SIGCONT)
    eventually(lambda: probe(server)[0] == 200)
    if stream is not None:
        assert stream.end() == "length"


def test_a_stopped_engine_of_several_api_servers(serve):
    server = serve("--api-server-count", "2").ready()
    pid = stop(server, "engine 0")
    os.kill(pid, signal.SIGCONT)
    eventually(lambda: all(probe(server)[0] == 200 for _ in range(4)))


@pytest.mark.nightly
def test_a_step_of_seconds_is_no_standstill(serve):
    server = serve("--worker-option", "step_ms=3000").ready()
    with server.client() as client:
        stream = client.completions.create(model="tiny", prompt="x", max_tokens=2, stream=True)
        seen = set()
        next(iter(stream))
        for _ in range(20):
            seen.add(probe(server)[0])
            eventually(lambda: True)
        list(stream)
    assert seen == {200}


def test_an_engine_that_hangs_is_started_again_and_health_stays(serve):
    """Stopped for longer than --step-timeout: recovery, during which the server is not ready, and healthy."""
    server = serve("--worker-option", "step_ms=5", "--step-timeout", "2").ready()
    stream = Stream(server)
    stop(server, "engine 0")
    healths = set()

    def has_recovered() -> bool:
        healths.add(server.get("/health")[0])
        return "serves again" in server.output

    eventually(has_recovered)
    assert healths == {200}
    assert probe(server)[0] == 200
    assert stream.end() == "length"
    assert "engine 0 epoch 2" in server.pids()


def test_health_is_503_once_it_is_given_up(serve):
    """A server whose engines failed permanently exits; until then it reports that."""
    server = serve("--worker-option", "step_ms=20", "--engine-death", "stop").ready()
    statuses = set()
    psutil.Process(server.engine_pid()).kill()
    while server.process.poll() is None:
        try:
            statuses.add((server.get("/health")[0], probe(server)[0]))
        except OSError:
            break
    assert server.end() == 1
    assert statuses <= {(200, 200), (503, 503), (200, 503)}
