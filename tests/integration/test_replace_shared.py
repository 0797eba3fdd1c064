"""Engines that several API servers share are replaced under streams of clients of each (AF-27)."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from many_servers import Stream, on_each_server, texts, total
from server_process import ForkedServer, Server
from test_replace import HEADERS, OPERATED, post

pytestmark = pytest.mark.timeout(120)  # as in test_openai_server
DEMO = ("--worker", "torch", "--load-format", "auto", "--device", "cpu", "--dtype", "float32")
SAMPLED = {"temperature": 0.9, "top_p": 0.95}
STUCK = """
from tenonry_scheduler_static import StaticScheduler

class Stuck(StaticScheduler):
    def __init__(self, context):
        raise ValueError("no such queue")
"""


class Demo(ForkedServer):
    """Two API servers of the demo model."""

    def __init__(self, _: Path, *arguments: str, **environment: str) -> None:
        super().__init__(Path("demo"), *arguments, *DEMO, OMP_NUM_THREADS="1", **environment)


@pytest.fixture
def operated(start):
    """`start`, for operators."""

    def run(*arguments: str, **options: Any) -> Server:
        server = start(*OPERATED, *arguments, **options).ready()
        server.headers = HEADERS
        return server

    return run


def schedulers(server: Server) -> list[str]:
    """Schedulers reported by the metrics."""
    lines = server.get("/metrics")[1].splitlines()
    found = [line for line in lines if line.startswith("tenonry:plugin_info{")]
    return [
        line.partition('name="')[2].partition('"')[0]
        for line in found
        if 'kind="scheduler"' in line
    ]


@pytest.mark.nightly
def test_streams_of_all_servers_go_on_in_the_next_engine(operated):
    server = operated("--worker-option", "step_ms=5")
    whole = Stream(server).begin(**HEADERS)
    assert whole.end() == "length"
    (text,) = texts({"": [whole]})
    streams = on_each_server(server, 3, max_tokens=400, **HEADERS)
    before = server.pids()
    assert post(server, {"scheduler": "static", "max_num_seqs": 64})[0] == 200
    after = server.pids()
    assert before.keys() - after.keys() == {"engine 0"}
    assert after.keys() - before.keys() == {"engine 0 epoch 2"}
    assert all(stream.is_alive() for some in streams.values() for stream in some)
    assert {stream.end() for some in streams.values() for stream in some} == {"length"}
    assert texts(streams) == {text}
    assert schedulers(server) == ["static"]
    assert total(server, "engine_replacements_total") == 1
    assert total(server, "engine_deaths_total") == 0
    assert total(server, "requests_continued_total") >= 6
    again = on_each_server(server, 1, max_tokens=400, **HEADERS)
    os.kill(after["engine 0 epoch 2"], signal.SIGKILL)
    assert {stream.end() for some in again.values() for stream in some} == {"length"}
    assert texts(again) == {text}
    assert schedulers(server) == ["static"]
    os.kill(after["api-server 1"], signal.SIGKILL)
    server.wait_for("(api-server 1 serves again)")
    more = on_each_server(server, 1, max_tokens=20, **HEADERS)
    assert {stream.end() for some in more.values() for stream in some} == {"length"}
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0
    assert "Traceback" not in server.output


def test_what_is_refused_changes_nothing_for_any_server(operated, monkeypatch, tmp_path):
    """A scheduler that raises is one, too; a class of a file is taken from the operator alone."""
    (tmp_path / "stuck_here.py").write_text(STUCK)
    monkeypatch.syspath_prepend(str(tmp_path))
    server = operated("--worker-option", "step_ms=5")
    streams = on_each_server(server, 2, max_tokens=400, **HEADERS)
    before = server.pids()
    for changes, reason in [
        ({"scheduler": "no-such"}, "no scheduler is called 'no-such'; installed: batching"),
        ({"scheduler": "stuck_here:Stuck"}, "no such queue"),
        ({"model": "other"}, "model cannot change while engines are replaced"),
        ({"num_gpu_blocks_override": 1}, "engine 0 would have max_model_len 16 instead of 512"),
    ]:
        status, said = post(server, changes)
        assert (status, reason in said) == (409, True), said
        assert server.pids() == before
    assert {stream.end() for some in streams.values() for stream in some} == {"length"}
    assert len(texts(streams)) == 1
    assert schedulers(server) == ["batching"]
    assert post(server, {"scheduler": "static"})[0] == 200
    assert schedulers(server) == ["static"]


@pytest.mark.nightly
def test_a_server_that_is_killed_meanwhile_stops_nothing(operated):
    server = operated("--worker-option", "step_ms=5")
    streams = on_each_server(server, 2, max_tokens=400, **HEADERS)
    os.kill(server.pids()["api-server 1"], signal.SIGKILL)
    assert post(server, {"scheduler": "static"})[0] == 200
    assert {stream.end() for stream in streams["api-server 2"]} == {"length"}
    server.wait_for("(api-server 1 serves again)")
    more = on_each_server(server, 1, max_tokens=50, **HEADERS)
    assert {stream.end() for some in more.values() for stream in some} == {"length"}
    assert schedulers(server) == ["static"]


@pytest.mark.nightly
def test_several_engines_are_replaced_one_after_the_other(operated):
    server = operated("--data-parallel-size", "2", "--worker-option", "step_ms=5")
    streams = on_each_server(server, 4, max_tokens=400, **HEADERS)
    assert post(server, {"scheduler": "static"})[0] == 200
    assert {"engine 0 epoch 2", "engine 1 epoch 3"} < server.pids().keys()
    assert {stream.end() for some in streams.values() for stream in some} == {"length"}
    assert len(texts(streams)) == 1
    assert total(server, "engine_replacements_total") == 2


PROMPTS = [f"Once upon a time there were {number}" for number in range(16)]


def told(server: Server, number: int) -> tuple[str, list[int], str]:
    """Text, ids and end of one stream; every other one is drawn with a seed."""
    sampling = {**SAMPLED, "seed": number} if number % 2 else {"temperature": 0}
    stream = Stream(server, 300, prompt=PROMPTS[number], return_token_ids=True, **sampling)
    end = stream.begin(**HEADERS).end()
    choices = [event["choices"][0] for event in stream.events if event["choices"]]
    ids = [token_id for choice in choices for token_id in choice["token_ids"]]
    return "".join(choice["text"] for choice in choices), ids, end


@pytest.mark.slow
@pytest.mark.nightly
def test_tokens_of_the_demo_model_are_those_of_an_undisturbed_run(operated):
    """In float32 nothing is lost, repeated or different. Streams follow one another until the engines have changed."""
    server = operated(kind=Demo)
    is_over = threading.Event()

    def tell(number: int) -> list[tuple[str, list[int], str]]:
        found = [told(server, number)]
        while not is_over.is_set():
            found.append(told(server, number))
        return found

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        expected = list(pool.map(lambda number: told(server, number), range(len(PROMPTS))))
        assert {(len(ids), end) for _, ids, end in expected} == {(300, "length")}
        running = [pool.submit(tell, number) for number in range(len(PROMPTS))]
        for scheduler in ("static", "batching"):
            assert post(server, {"scheduler": scheduler})[0] == 200
        is_over.set()
        for future, each in zip(running, expected, strict=True):
            assert future.result() == [each] * len(future.result())
    assert total(server, "requests_continued_total") >= 16
    assert "engine 0 epoch 3" in server.pids()
