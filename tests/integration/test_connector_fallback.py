"""`--fallback-kv-connector`: takes over from a KV connector that raised twice, or leaves it out (AF-26)."""

from __future__ import annotations

import psutil
import pytest
from many_servers import Stream, texts, total
from server_process import ForkedServer

pytestmark = pytest.mark.timeout(120)  # as in test_openai_server
BROKEN = """
from tenonry.interfaces.kv_connector import KVConnector

class Broken(KVConnector):
    num_calls = 0

    def {call}(self, *_):
        self.num_calls += 1
        if self.num_calls > 5:
            raise OSError("the store is gone")
"""


def answers(server):
    asked = {"temperature": 0, "prompt": "Once upon a time there were"}
    streams = [Stream(server, 40, **asked).begin() for _ in range(3)]
    assert {stream.end() for stream in streams} == {"length"}
    return texts({"": streams})


@pytest.mark.parametrize(
    ("call", "fallback", "flags"),
    [
        ("build_metadata", "off", ()),
        pytest.param("load", "off", ("--tensor-parallel-size", "2"), marks=pytest.mark.nightly),
        ("load", "host", ()),
    ],
    ids=["in the engine", "in two ranks", "another takes over"],
)
@pytest.mark.nightly_after(1)
def test_streams_go_on_when_it_raised_twice(tmp_path, call, fallback, flags):
    file = tmp_path / "broken.py"
    file.write_text(BROKEN.format(call=call), "utf-8")
    server = ForkedServer(
        "demo", "--load-format", "auto", "--dtype", "float32", "--kv-connector", f"{file}:Broken",
        "--fallback-kv-connector", fallback,
        *flags, OMP_NUM_THREADS="1",
    )  # fmt: skip
    try:
        found = answers(server.ready())
        others = "none" if fallback == "off" else f"'{fallback}'"
        assert (
            f"kv_connector '{file}:Broken' raised or violated its contract 2 times" in server.output
        )
        assert f"new engines use {others} (--fallback-kv-connector)" in server.output
        assert total(server, "engine_deaths_total") == 2
        assert total(server, "kv_connector_fallbacks_total") == 1
        assert total(server, "scheduler_fallbacks_total") == 0
        (pid,) = (pid for name, pid in server.pids().items() if name.startswith("engine 0"))
        title = " ".join(psutil.Process(pid).cmdline()).rstrip("\0 ")
        assert title == f"tenonry: engine 0 epoch 3 fallback KV connector {fallback}"
        assert answers(server) == found
        assert total(server, "engine_deaths_total") == 2
    finally:
        server.close()


def test_it_is_refused_where_it_could_take_the_place_of_nothing():
    server = ForkedServer("demo", "--fallback-kv-connector", "off")
    try:
        assert server.end() == 1
        assert "fallback_kv_connector=off: there is no KV connector" in server.output
    finally:
        server.close()
