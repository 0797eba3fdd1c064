"""Two engines share the experts of each layer: one of the server, one of a headless node. Their rendezvous is a port
that the handshake passes on (DP-7, HS-5). Tokens are those of `generate`, in float32, whatever the other engine does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import psutil
import pytest
from expert_model import complete, generated, prompts, save_model
from server_process import TORCH_CACHE, ForkedServer, Server
from test_replace import HEADERS, KEY, OPERATED

from tenonry.transport.keys import CurveKeys
from tenonry_testkit.kernel.forked import ForkedCommand
from tenonry_testkit.processes import free_port

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("experts") / "model")


@pytest.fixture(scope="module")
def wanted(folder: Path) -> list[list[int]]:
    return generated(folder)


@pytest.fixture(scope="module")
def served(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with two_nodes(folder, tmp_path_factory.mktemp("keys") / "keys.txt") as server:
        yield server


@contextmanager
def two_nodes(folder: Path, keys: Path) -> Iterator[Server]:
    """Engine 0 belongs to the server, engine 1 to a headless node; only the server knows their rendezvous."""
    keys.write_text(CurveKeys.generate().encode())
    keys.chmod(0o600)
    common = [
        "--data-parallel-size", "2", "--data-parallel-size-local", "1", "--data-parallel-rpc-port", str(free_port()),
        "--auth-key-file", str(keys), "--enable-expert-parallel", "--dtype", "float32", "--load-format", "auto",
        "--max-model-len", "1000", "--skip-tokenizer-init", "--max-num-batched-tokens", "16", "--max-num-seqs", "8",
        "--data-parallel-sync-steps", "4", "--step-timeout", "20",
    ]  # fmt: skip
    server = ForkedServer(
        folder, *common, "--expert-rendezvous", f"tcp://127.0.0.1:{free_port()}", OMP_NUM_THREADS="1"
    )  # fmt: skip
    words = ("serve", str(folder), "--headless", *common, "--data-parallel-start-rank", "1")
    node = ForkedCommand(
        [sys.executable, "-m", "tenonry", *words],
        env={**TORCH_CACHE, **os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    server.node = node
    try:
        yield server.ready()
    finally:
        server.close()
        if node.poll() is None:
            os.killpg(node.pid, signal.SIGKILL)
        node.wait()


def tokens(client: openai.OpenAI, prompt: list[int], engine: int) -> list[int]:
    found: list[int] = complete(client, prompt, engine=engine).choices[0].token_ids
    return found


def test_tokens_are_those_of_one_model(served, wanted):
    """Alone on each engine, while the other computes without a request; then together, prompts in chunks."""
    given = prompts()
    with served.client() as client:
        for engine in (0, 1):
            assert tokens(client, given[0], engine) == wanted[0]
        found: dict[int, list[int]] = {}

        def ask(number: int) -> None:
            found[number] = tokens(client, given[number], number % 2)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(given))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [found.get(number) for number in range(len(given))] == wanted
        assert tokens(client, given[3], 1) == wanted[3]


LONG = 200


def streamed(server: Server, killed: Callable[[], int] | None = None) -> list[list[int]]:
    """The tokens of four streams, two per engine; a process is killed once all have begun, if one is named."""
    begun = [threading.Event() for _ in range(4)]
    found: dict[int, list[int]] = {number: [] for number in range(4)}

    def ask(number: int) -> None:
        with server.client() as client:
            stream = complete(client, prompts()[number], LONG, engine=number % 2, stream=True)
            for chunk in stream:
                found[number] += chunk.choices[0].token_ids
                begun[number].set()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    assert all(event.wait(30) for event in begun)
    if killed is not None:
        os.kill(killed(), signal.SIGKILL)
    for thread in threads:
        thread.join(60)
    return [found[number] for number in range(4)]


def titles(pid: int) -> dict[str, int]:
    """The children of a process by their titles."""
    return {
        child.cmdline()[0].removeprefix("tenonry: "): child.pid
        for child in psutil.Process(pid).children()
    }


def engine_of(pids: dict[str, int], number: int) -> int:
    """Its title has an epoch once it was started again."""
    (pid,) = [pid for title, pid in pids.items() if title.startswith(f"engine {number}")]
    return pid


@pytest.mark.nightly
def test_streams_of_both_nodes_go_on_when_an_engine_is_killed(folder, tmp_path):
    """Both engines restart and rendezvous at the same port; every stream continues, token for token (AF-24)."""
    with two_nodes(folder, tmp_path / "keys.txt") as server:
        wanted = streamed(server)
        assert [*map(len, wanted)] == [LONG] * 4
        assert streamed(server, lambda: engine_of(server.pids(), 0)) == wanted
        assert streamed(server, lambda: engine_of(titles(server.node.pid), 1)) == wanted
        assert server.node.poll() is None


@pytest.mark.nightly
def test_streams_of_several_api_servers_go_on_when_an_engine_is_killed(folder):
    """The servers are connected to both engines again, and to another coordinator."""
    server = ForkedServer(
        folder, "--data-parallel-size", "2", "--api-server-count", "2", "--enable-expert-parallel",
        "--dtype", "float32", "--load-format", "auto", "--max-model-len", "1000", "--skip-tokenizer-init",
        "--data-parallel-sync-steps", "4", "--step-timeout", "20", OMP_NUM_THREADS="1",
    )  # fmt: skip
    try:
        server.ready()
        wanted = streamed(server)
        assert [*map(len, wanted)] == [LONG] * 4
        for _ in range(2):
            assert streamed(server, lambda: engine_of(server.pids(), 1)) == wanted
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
    finally:
        server.close()


@pytest.mark.nightly
def test_the_number_of_engines_changes(folder, wanted):
    """AF-19: behind several API servers, which all get the new engines; a shorter test is `TestNumber` of scale-out."""
    server = ForkedServer(
        folder, "--data-parallel-size", "2", "--api-server-count", "2", "--enable-expert-parallel",
        "--dtype", "float32", "--load-format", "auto", "--max-model-len", "1000", "--skip-tokenizer-init",
        "--data-parallel-sync-steps", "4", "--step-timeout", "20", *OPERATED, OMP_NUM_THREADS="1",
    )  # fmt: skip
    try:
        server.ready()
        for size, status in ((4, 200), (1, 409), (2, 200)):
            answer = httpx.post(
                f"{server.url}/scale", json={"size": size}, headers=HEADERS, timeout=60
            )
            assert answer.status_code == status, answer.text
            assert status == 200 or "enable_expert_parallel with one rank" in answer.text
            num_engines = size if status == 200 else 4
            for _ in range(4):  # by either server
                with server.client(KEY) as client:
                    found = [
                        tokens(client, each, n % num_engines) for n, each in enumerate(prompts())
                    ]
                    assert found == wanted
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
    finally:
        server.close()


def test_a_dead_engine_ends_the_others_steps_and_every_request_is_answered(served):
    """The engine of the other node is killed while both have work: the first node's waits for it in a layer."""
    begun = [threading.Event() for _ in range(4)]
    errors: dict[int, str] = {}

    def ask(number: int) -> None:
        with served.client() as client:
            try:
                for _ in complete(client, [5, 6, 7], 900, engine=number % 2, stream=True):
                    begun[number].set()
            except openai.APIError as error:
                errors[number] = str(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    assert all(event.wait(30) for event in begun)
    os.killpg(served.node.pid, signal.SIGKILL)
    for thread in threads:
        thread.join(30)
    assert sorted(errors) == [0, 1, 2, 3]
    assert all("engine" in text for text in errors.values())
    assert served.end() == 1
