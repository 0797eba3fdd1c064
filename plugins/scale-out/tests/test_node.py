"""Engines on another node, here 127.0.0.1 with TCP and CURVE: start, work, and every end (HS-11's remote side)."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from tenonry.client.async_llm import AsyncLLM
from tenonry.errors import ConfigError, EngineDeadError, EngineGenerateError, RequestError
from tenonry.plugin.manager import PluginManager
from tenonry.transport.keys import CurveKeys
from tenonry_scale_out import node as node_module
from tenonry_scale_out.node import HeadlessNode, run_headless
from tenonry_testkit.processes import free_port
from tenonry_testkit.roles import eventually, interrupted
from tenonry_testkit.served import FAKES, collect, params, served_config, tokens

pytestmark = pytest.mark.timeout(60)
T = TypeVar("T")
SCRIPT = """
import sys
from tenonry.config import EngineConfig
from tenonry_scale_out.node import run_headless
sys.exit(run_headless(EngineConfig.model_validate_json(sys.argv[1])))
"""


def write_keys(folder: Path) -> str:
    """A key file as `tenonry keys` writes it."""
    file = folder / "keys"
    file.touch(0o600)
    file.write_text(CurveKeys.generate().encode(), "ascii")
    return str(file)


class Served:
    """One AsyncLLM and its event loop."""

    def __init__(self, **values: Any) -> None:
        self.runner = asyncio.Runner()
        self.engine = AsyncLLM(served_config(**values))

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(main)

    def close(self) -> None:
        self.engine.shutdown()
        self.runner.close()


class Nodes:
    """A front end with engine 0, and a headless node with engine 1."""

    def __init__(self, folder: Path, **values: Any) -> None:
        self.values: dict[str, Any] = {
            "engine_recovery": "resume", **values,
            "data_parallel_size": 2, "data_parallel_size_local": 1, "data_parallel_rpc_port": free_port(),
            "auth_key_file": write_keys(folder), "start_timeout": 30.0,
        }  # fmt: skip
        config = served_config(**self.values, data_parallel_start_rank=1)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.log = folder / "node.log"
        self._command = [sys.executable, "-c", SCRIPT, config.model_dump_json()]
        self._environment = environment
        self.start_node()
        self.served: Served | None = None

    def start_node(self) -> None:
        with self.log.open("wb") as log:
            self.node = subprocess.Popen(
                self._command, env=self._environment, stderr=log, start_new_session=True
            )

    def start(self) -> Served:
        self.served = Served(**self.values)
        return self.served

    def engine_of_node(self) -> psutil.Process:
        (child,) = psutil.Process(self.node.pid).children()
        return child

    def close(self) -> None:
        if self.served is not None:
            self.served.close()
        self.node.kill()
        self.node.wait()


@pytest.fixture
def nodes(request: pytest.FixtureRequest, fake_model_site: Any, tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path, **getattr(request, "param", {}))
    yield made
    engines = psutil.Process(made.node.pid).children() if made.node.poll() is None else []
    made.close()
    psutil.wait_procs(engines, timeout=8)


async def both(served: Served) -> list[list[int]]:
    return await asyncio.gather(
        *(
            collect(served.engine, [i + 1], params(), f"r{i}", data_parallel_rank=i % 2)
            for i in range(16)
        )
    )


def test_engines_of_both_nodes_serve_and_end_with_the_front_end(nodes):
    served = nodes.start()
    assert list(served.engine.engine_pids) == ["engine 0"]
    assert served.engine.info.engine_indexes == (0, 1)
    assert served.run(both(served)) == [tokens([i + 1], params()) for i in range(16)]
    served.close()
    assert nodes.node.wait(30) == 1  # its front end is gone, and nobody told it to stop


SLOW = {"worker": {"name": f"{FAKES}:FakeWorker", "options": {"delay_s": 0.02}}}


async def kill_under_load(served: Served, kill: Callable[[], None]) -> list[list[int]]:
    """Streams on both engines, every other one asks for that of the node; killed once each has a token."""
    wanted = params(max_tokens=40)
    streams = [
        served.engine.generate([i + 1], wanted, f"r{i}", data_parallel_rank=1 if i % 2 else None)
        for i in range(16)
    ]
    first = [await anext(stream) for stream in streams]
    kill()

    async def rest(number: int) -> list[int]:
        outputs = [first[number], *[output async for output in streams[number]]]
        return [token for output in outputs for token in output.outputs[0].token_ids]

    return await asyncio.gather(*map(rest, range(16)))


UNDER_LOAD = [tokens([i + 1], params(max_tokens=40)) for i in range(16)]


@pytest.mark.parametrize("nodes", [SLOW], indirect=True)
@pytest.mark.nightly
def test_an_engine_that_dies_on_the_other_node_is_started_again_there(nodes):
    """Its streams go on, token for token, several times (AF-24)."""
    served = nodes.start()
    for _ in range(2):
        engine = nodes.engine_of_node()
        found = served.run(kill_under_load(served, engine.kill))
        assert found == UNDER_LOAD
        assert nodes.engine_of_node().pid != engine.pid
    assert "epoch 3" in " ".join(nodes.engine_of_node().cmdline())
    assert nodes.node.poll() is None
    served.close()
    assert nodes.node.wait(30) == 1


@pytest.mark.parametrize("nodes", [SLOW], indirect=True)
def test_streams_of_a_node_that_is_gone_go_on_where_they_can(nodes, caplog):
    """Those that asked for its engine end when that is given up."""
    served = nodes.start()

    async def main() -> list[Any]:
        wanted = params(max_tokens=40)
        ranks = [1] + 15 * [None]
        begun = [asyncio.Event() for _ in ranks]
        running = [
            collect(
                served.engine, [i + 1], wanted, f"r{i}", has_begun=begun[i], data_parallel_rank=rank
            )
            for i, rank in enumerate(ranks)
        ]
        gathered = asyncio.gather(*running, return_exceptions=True)
        await begun[0].wait()
        nodes.node.kill()
        return await gathered

    pinned, *others = served.run(main())
    assert others == UNDER_LOAD[1:]
    assert isinstance(pinned, RequestError)
    assert "the node of engines [1] is gone" in caplog.text


async def until(condition: Callable[[], object]) -> None:
    """While the loop serves; bounded by the time limit of the test."""
    while not condition():  # noqa: ASYNC110 - no event says so
        await asyncio.sleep(0.01)


@pytest.mark.nightly
@pytest.mark.parametrize("nodes", [SLOW], indirect=True)
def test_a_node_that_is_started_again_joins_again(nodes, caplog):
    """Before its silence is noticed, when streams wait for its engine, and after that was given up."""
    served = nodes.start()

    def kill() -> None:
        nodes.node.kill()
        nodes.node.wait()

    def kill_and_start() -> None:
        kill()
        nodes.start_node()

    assert served.run(kill_under_load(served, kill_and_start)) == UNDER_LOAD
    assert "joining engines [1]" in nodes.log.read_text()
    assert "engine 1: its node" in caplog.text
    kill()
    served.run(until(lambda: "engine failed permanently" in caplog.text))
    nodes.start_node()
    served.run(until(lambda: len(served.engine.engine_core.able) == 2))
    assert served.run(kill_under_load(served, lambda: None)) == UNDER_LOAD
    assert "joining engines [1]" in nodes.log.read_text()


@pytest.mark.parametrize("nodes", [{"engine_death": "stop"}], indirect=True)
def test_a_node_that_cannot_join_says_so(nodes):
    nodes.start()
    nodes.node.kill()
    nodes.node.wait()
    nodes.start_node()
    assert nodes.node.wait(30) == 1
    assert "restart the first node as well" in nodes.log.read_text()


FAULTY = {"name": "tenonry_testkit.kernel.faulty:FaultyScheduler", "options": {"fail": "schedule"}}
REFERENCE = f"{FAKES}:ReferenceScheduler"


@pytest.mark.parametrize(
    "nodes", [{"scheduler": FAULTY, "fallback_scheduler": REFERENCE}], indirect=True
)
def test_a_fallback_scheduler_takes_over_on_the_other_node_too(nodes, caplog):
    served = nodes.start()
    assert served.run(both(served)) == [tokens([i + 1], params()) for i in range(16)]
    assert caplog.text.count("raised or violated its contract 2 times") == 1
    assert f"fallback scheduler {REFERENCE}" in " ".join(nodes.engine_of_node().cmdline())


@pytest.mark.parametrize("nodes", [{"engine_death": "stop"}], indirect=True)
def test_with_engine_death_stop_a_node_ends_with_its_engine(nodes):
    served = nodes.start()
    nodes.engine_of_node().send_signal(signal.SIGKILL)
    eventually(lambda: served.engine.engine_core.engines[1].dead)
    with pytest.raises(EngineDeadError, match="SIGKILL on node "):
        served.run(both(served))
    assert nodes.node.wait(30) == 1
    assert re.search(
        r"^E [\d:]+ \[node\] engine 1 ended with signal SIGKILL, before its first step$",
        nodes.log.read_text(),
        re.MULTILINE,
    )


def test_a_node_that_is_silent_is_lost(nodes):
    served = nodes.start()
    engine = nodes.engine_of_node()
    os.kill(nodes.node.pid, signal.SIGKILL)
    eventually(lambda: served.engine.engine_core.engines[1].dead)
    assert served.run(collect(served.engine, [1], params(), "r")) == tokens([1], params())
    eventually(lambda: not engine.is_running())


def test_a_signal_ends_a_node_in_order(nodes):
    """To the whole group: what runs there is finished first, and the front end hears that the engine is gone."""
    served = nodes.start()

    async def main() -> list[int]:
        long = params(max_tokens=300)
        stream = served.engine.generate([1], long, "r", data_parallel_rank=1)
        outputs = [await anext(stream)]
        os.killpg(nodes.node.pid, signal.SIGTERM)
        outputs += [output async for output in stream]
        return [token for output in outputs for token in output.outputs[0].token_ids]

    assert served.run(main()) == tokens([1], params(max_tokens=300))
    assert nodes.node.wait(30) == 0
    eventually(
        lambda: "engine 1 was stopped on node" in str(served.engine.engine_core.engines[1].dead)
    )


async def until_it_refuses(served: Served) -> None:
    """Until the engine of the node has noticed that it is to end."""
    for number in itertools.count():
        try:
            late = params(max_tokens=1)
            await collect(served.engine, [2], late, f"late {number}", data_parallel_rank=1)
        except EngineGenerateError as error:
            assert "the engine is shutting down" in str(error)  # noqa: PT017 - the first of several
            return


@pytest.mark.parametrize("nodes", [SLOW], indirect=True)
def test_a_second_signal_aborts_what_runs_on_a_node(nodes):
    served = nodes.start()

    async def main() -> str:
        long = params(max_tokens=500)
        stream = served.engine.generate([1], long, "r", data_parallel_rank=1)
        await anext(stream)
        os.killpg(nodes.node.pid, signal.SIGTERM)
        await until_it_refuses(served)  # two signals that are pending at once would be one
        os.killpg(nodes.node.pid, signal.SIGTERM)
        return [output async for output in stream][-1].outputs[0].finish_reason

    assert served.run(main()) == "abort"
    assert nodes.node.wait(30) == 0


class TestWhatIsMissing:
    @pytest.mark.parametrize(
        ("values", "words"),
        [
            ({}, "--headless needs --data-parallel-size-local"),
            (
                {"data_parallel_size_local": 2, "data_parallel_start_rank": 1},
                "go beyond data_parallel_size=2",
            ),
            ({"auth_key_file": "/nothing"}, "auth_key_file=/nothing cannot be read"),
        ],
    )
    def test_it_is_named(self, fake_model_site, tmp_path, values, words):
        keys = write_keys(tmp_path)
        full = (
            {"data_parallel_size_local": 1, "data_parallel_rpc_port": 9, "auth_key_file": keys}
            if values
            else {}
        )
        with pytest.raises(ConfigError, match=words):
            run_headless(served_config(data_parallel_size=2, **{**full, **values}))


class QuickLine:
    """The socket to a front end that answers at once."""

    def __init__(self) -> None:
        self.answers = 0

    def send(self, _: bytes) -> None:
        self.answers += 1

    def poll(self, _: int) -> int:
        return self.answers

    def recv(self) -> bytes:
        self.answers -= 1
        return b"ok"


def test_a_signal_stops_a_node_wherever_it_is(fake_model_site, tmp_path, monkeypatch):
    """It may come while the node holds a lock, which its handler would wait for in vain."""
    monkeypatch.setattr(node_module, "REPORT_EVERY_S", 0.001)
    config = served_config(
        data_parallel_size=2,
        data_parallel_size_local=1,
        data_parallel_rpc_port=9,
        auth_key_file=write_keys(tmp_path),
    )
    manager = PluginManager(config.plugins)
    plan, model = manager.plan(config, launcher=True), manager.resolve_model(config)
    for number in range(80):
        node = HeadlessNode(config, plan, model)
        report = functools.partial(node._report_until_the_end, QuickLine())
        thread = threading.Thread(target=interrupted, args=(report, node.stop, number), daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive(), f"before line {number}"
