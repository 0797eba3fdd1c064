"""`tenonry replace` and `POST /replace`: engines of a server change under streams of its clients (AF-27)."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from many_servers import Stream
from server_process import Server

KEY = "right"
OPERATED = ("--api-key", KEY, "--enable-operator-routes")
HEADERS = {"authorization": f"Bearer {KEY}"}
pytestmark = pytest.mark.timeout(120)  # as in test_openai_server


def replace(server: Server, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tenonry", "replace", "--url", server.url, "--api-key", KEY]
    return subprocess.run(
        [*command, *flags], capture_output=True, text=True, timeout=60, check=False
    )


def post(server: Server, changes: object, key: str = KEY) -> tuple[int, str]:
    request = urllib.request.Request(
        server.url + "/replace",
        json.dumps({"changes": changes}).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {key}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def texts(streams: list[Stream]) -> set[str]:
    return {
        "".join(event["choices"][0]["text"] for event in stream.events if event["choices"])
        for stream in streams
    }


def begin(server: Server, count: int) -> list[Stream]:
    return [Stream(server, 800).begin(**HEADERS) for _ in range(count)]


@pytest.mark.slow
def test_the_scheduler_changes_under_streams_and_what_is_wrong_is_refused(serve):
    server = serve(*OPERATED, "--worker-option", "step_ms=10").ready()
    (whole,) = begin(server, 1)
    assert whole.end() == "length"
    streams = begin(server, 16)
    assert post(server, {"scheduler": "static"}, key="wrong")[0] == 401
    refused = replace(server, "--scheduler", "no-such")
    assert refused.returncode == 1
    assert "answered 409: no scheduler is called 'no-such'; installed: batching" in refused.stderr
    status, text = post(server, {"scheduler": "/tmp/own.py:Own"})
    assert (status, "a class of a file is not taken over HTTP" in text) == (403, True)
    status, text = post(server, {"model": "other"})
    assert (status, "model cannot change while engines are replaced" in text) == (409, True)
    assert list(server.pids()) == ["engine 0"]
    done = replace(server, "--scheduler", "static", "--max-num-seqs", "32")
    assert (done.returncode, done.stderr) == (0, "")
    assert list(server.pids()) == ["engine 0 epoch 2"]
    assert all(stream.is_alive() for stream in streams)
    assert post(server, {"scheduler": "batching"})[0] == 200
    assert {stream.end() for stream in streams} == {"length"}
    assert texts(streams) == texts([whole])
    assert "engines are replaced" in server.output
    server.process.terminate()
    assert server.end() == 0
    assert "Traceback" not in server.output
