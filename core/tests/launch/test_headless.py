"""Engines on another node, here 127.0.0.1 with TCP and CURVE: start, work, and every end (HS-11's remote side)."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from kernel_roles import eventually
from kernel_served import Served, collect, fake_model_installed, params, served_config, tokens

from tenonry.cli import main
from tenonry.errors import ConfigError, EngineDeadError
from tenonry.launch.headless import run_headless
from tenonry.sockets import CurveKeys, read_keys

pytestmark = pytest.mark.timeout(60)
SCRIPT = """
import sys
from tenonry.config import EngineConfig
from tenonry.launch.headless import run_headless
sys.exit(run_headless(EngineConfig.model_validate_json(sys.argv[1])))
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Nodes:
    """A front end with engine 0, and a headless node with engine 1."""

    def __init__(self, folder: Path) -> None:
        self.keys = folder / "keys"
        assert main(["keys", str(self.keys)]) == 0
        self.values: dict[str, Any] = {
            "data_parallel_size": 2, "data_parallel_size_local": 1, "data_parallel_rpc_port": free_port(),
            "auth_key_file": str(self.keys), "start_timeout": 30.0,
        }  # fmt: skip
        config = served_config(**self.values, data_parallel_start_rank=1)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.node = subprocess.Popen([sys.executable, "-c", SCRIPT, config.model_dump_json()], env=environment)
        self.served: Served | None = None

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
def nodes(tmp_path) -> Iterator[Nodes]:
    with fake_model_installed(tmp_path / "site"):
        made = Nodes(tmp_path)
        yield made
        engines = psutil.Process(made.node.pid).children() if made.node.poll() is None else []
        made.close()
        psutil.wait_procs(engines, timeout=8)


async def both(served: Served) -> list[list[int]]:
    return await asyncio.gather(
        *(collect(served.engine, [i + 1], params(), f"r{i}", data_parallel_rank=i % 2) for i in range(16))
    )


def test_engines_of_both_nodes_serve_and_end_with_the_front_end(nodes):
    served = nodes.start()
    assert list(served.engine.engine_pids) == ["engine 0"]
    assert served.engine.info.engine_indexes == (0, 1)
    assert served.run(both(served)) == [tokens([i + 1], params()) for i in range(16)]
    served.close()
    assert nodes.node.wait(15) == 1  # its front end is gone, and nobody told it to stop


def test_an_engine_that_dies_on_the_other_node_is_noticed(nodes):
    served = nodes.start()
    nodes.engine_of_node().send_signal(signal.SIGKILL)
    eventually(lambda: served.engine._client.engines[1].dead)
    with pytest.raises(EngineDeadError, match="SIGKILL on node "):
        served.run(both(served))
    assert nodes.node.wait(15) == 1


def test_a_node_that_is_silent_is_lost(nodes):
    served = nodes.start()
    engine = nodes.engine_of_node()
    os.kill(nodes.node.pid, signal.SIGKILL)
    eventually(lambda: served.engine._client.engines[1].dead, seconds=12)
    assert served.run(collect(served.engine, [1], params(), "r")) == tokens([1], params())
    eventually(lambda: not engine.is_running())


def test_a_signal_ends_a_node_in_order(nodes):
    """What runs there is finished first, and the front end hears that the engine is gone."""
    served = nodes.start()

    async def main() -> list[int]:
        long = params(max_tokens=300)
        job = asyncio.ensure_future(collect(served.engine, [1], long, "r", data_parallel_rank=1))
        await asyncio.sleep(0.2)
        nodes.node.send_signal(signal.SIGTERM)
        return await job

    assert served.run(main()) == tokens([1], params(max_tokens=300))
    assert nodes.node.wait(15) == 0
    eventually(lambda: "engine 1 was stopped on node" in served.engine._client.engines[1].dead)


class TestWhatIsMissing:
    @pytest.mark.parametrize(
        ("values", "words"),
        [
            ({}, "--headless needs --data-parallel-size-local"),
            ({"data_parallel_size_local": 2, "data_parallel_start_rank": 1}, "go beyond data_parallel_size=2"),
            ({"auth_key_file": "/nothing"}, "auth_key_file=/nothing cannot be read"),
        ],
    )
    def test_it_is_named(self, tmp_path, values, words):
        keys = tmp_path / "keys"
        main(["keys", str(keys)])
        full = (
            {"data_parallel_size_local": 1, "data_parallel_rpc_port": 9, "auth_key_file": str(keys)} if values else {}
        )
        with fake_model_installed(tmp_path / "site"), pytest.raises(ConfigError, match=words):
            run_headless(served_config(data_parallel_size=2, **{**full, **values}))


class TestKeys:
    def test_a_new_file_is_private_and_never_overwritten(self, tmp_path, capsys):
        file = tmp_path / "keys"
        assert main(["keys", str(file)]) == 0
        assert file.stat().st_mode & 0o777 == 0o600
        assert isinstance(read_keys(str(file)), CurveKeys)
        assert main(["keys", str(file)]) == 1
        assert "cannot be written: File exists" in capsys.readouterr().err

    def test_a_file_that_others_can_read_is_refused(self, tmp_path):
        file = tmp_path / "keys"
        main(["keys", str(file)])
        file.chmod(0o644)
        with pytest.raises(ConfigError, match="chmod 600"):
            read_keys(str(file))

    def test_a_file_of_something_else_is_refused(self, tmp_path):
        file = tmp_path / "keys"
        file.write_text("hello")
        file.chmod(0o600)
        with pytest.raises(ConfigError, match="no set of keys"):
            read_keys(str(file))
