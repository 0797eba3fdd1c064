"""A server for each of two engines that share experts (`--data-parallel-rank`): each serves its own engine, at its own
address, and the end of one ends both. Tokens are those of `generate`, in float32.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import psutil
import pytest
from expert_model import complete, generated, prompts, save_model
from server_process import ForkedServer, Server

from tenonry.transport.keys import CurveKeys
from tenonry_testkit.processes import free_port

pytestmark = pytest.mark.timeout(180)
ADDRESSES = ("127.0.0.1", "127.0.0.2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("grouped") / "model")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("keys") / "keys.txt"
    file.write_text(CurveKeys.generate().encode())
    file.chmod(0o600)
    return file


class Group:
    """Two servers of one group. Their sockets are files of a folder of their own."""

    def __init__(
        self, folder: Path, keys: Path, *of_second: str, model: Path | None = None
    ) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="g")
        common = [
            "--enable-expert-parallel", "--data-parallel-size", "2", "--data-parallel-rpc-port", str(free_port()),
            "--auth-key-file", str(keys), "--dtype", "float32", "--load-format", "auto", "--max-model-len", "1000",
            "--skip-tokenizer-init", "--max-num-batched-tokens", "16", "--max-num-seqs", "8",
            "--data-parallel-sync-steps", "4", "--step-timeout", "20", "--start-timeout", "60",
            "--enable-operator-routes", "--api-key", "k",
        ]  # fmt: skip
        own = [("--expert-rendezvous", f"tcp://127.0.0.1:{free_port()}"), of_second]
        self.servers = [
            ForkedServer(
                (folder, model or folder)[rank], *common, "--data-parallel-rank", str(rank),
                "--host", ADDRESSES[rank], *own[rank], OMP_NUM_THREADS="1", TMPDIR=self.folder.name,
            )
            for rank in (1, 0)
        ][::-1]  # fmt: skip
        self.processes: list[psutil.Process] = []

    def ready(self) -> Group:
        for server in self.servers:
            server.ready()
            top = psutil.Process(server.process.pid)
            self.processes += [top, *top.children(recursive=True)]
        return self

    def kill(self, rank: int) -> None:
        """The server of that rank."""
        os.kill(self.servers[rank].process.pid, signal.SIGKILL)

    def nothing_is_left(self) -> None:
        _, alive = psutil.wait_procs(self.processes, timeout=15)
        assert not alive
        assert not os.listdir(self.folder.name)  # noqa: PTH208

    def close(self) -> None:
        for server in self.servers:
            server.close()
        self.folder.cleanup()


@pytest.fixture(scope="module")
def group(folder: Path, keys: Path) -> Iterator[Group]:
    made = Group(folder, keys)
    try:
        yield made.ready()
    finally:
        made.close()


def client_of(server: Server) -> openai.OpenAI:
    return server.client("k")


def post(server: Server, path: str, body: dict[str, object]) -> tuple[int, str]:
    """As an operator does."""
    request = urllib.request.Request(
        server.url + path,
        json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": "Bearer k"},
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def scraped(server: Server) -> str:
    request = urllib.request.Request(server.url + "/metrics", headers={"authorization": "Bearer k"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return str(answer.read())


def last_states(server: Server) -> set[int]:
    """Answers of `/ready` until the server is gone."""
    found = set()
    with contextlib.suppress(OSError):
        while True:
            found.add(server.get("/ready")[0])
            time.sleep(0.02)
    return found


def test_tokens_are_those_of_one_model(group, folder):
    """Alone at each server, while the other's engine computes along; then at both, prompts in chunks."""
    wanted = generated(folder)
    given = prompts()
    found: dict[int, list[int]] = {}
    clients = [client_of(server) for server in group.servers]
    for client in clients:
        assert complete(client, given[0]).choices[0].token_ids == wanted[0]

    def ask(number: int) -> None:
        answer = complete(clients[number % 2], given[number])
        found[number] = answer.choices[0].token_ids

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(given))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found.get(number) for number in range(len(given))] == wanted


def test_each_server_has_its_own_engine_and_the_first_one_calls_all(group):
    second = client_of(group.servers[1])
    with pytest.raises(openai.BadRequestError, match="the ranks here are 1"):
        complete(second, [5], engine=0)
    assert [server.url.rpartition(":")[0] for server in group.servers] == [
        f"http://{address}" for address in ADDRESSES
    ]
    for path, body in (("/sleep", {}), ("/start_profile", {}), ("/pause", {"mode": "keep"})):
        status, text = post(group.servers[1], path, body)
        assert (status, "ask the server of data_parallel_rank=0" in text) == (409, True)
    for server in group.servers:
        status, text = post(server, "/scale", {"size": 3})
        assert (status, "their number is fixed" in text) == (409, True)
    assert post(group.servers[0], "/reset_prefix_cache", {}) == (200, '{"done":true}')
    assert post(group.servers[1], "/reset_prefix_cache", {}) == (200, '{"done":true}')
    metrics = [scraped(server) for server in group.servers]
    for rank, text in enumerate(metrics):
        assert f'engine="{rank}"' in text
        assert f'engine="{1 - rank}"' not in text


def test_a_server_that_is_killed_ends_every_request_and_the_other_one(group):
    begun = [threading.Event() for _ in range(4)]
    errors: dict[int, str] = {}

    def ask(number: int) -> None:
        client = client_of(group.servers[number % 2])
        try:
            for _ in complete(client, [5, 6, 7], 900, stream=True):
                begun[number].set()
        except (openai.APIError, httpx.HTTPError) as error:
            errors[number] = str(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    assert all(event.wait(30) for event in begun)
    group.kill(1)
    for thread in threads:
        thread.join(30)
    assert sorted(errors) == [0, 1, 2, 3]
    assert all("engine" in errors[number] for number in (0, 2))
    assert [server.end() for server in group.servers] == [1, -signal.SIGKILL]
    group.nothing_is_left()


@pytest.mark.nightly
def test_the_first_server_ends_the_other_one_while_no_request_runs(folder, keys):
    group = Group(folder, keys)
    try:
        group.ready()
        assert group.servers[1].get("/ready")[0] == 200
        group.kill(0)
        assert last_states(group.servers[1]) - {200} == {503}
        assert [server.end() for server in group.servers] == [-signal.SIGKILL, 1]
        group.nothing_is_left()
    finally:
        group.close()


def test_other_models_and_settings_are_named_on_both_sides(folder, keys, tmp_path):
    """Their tensors have the same shapes, so no other check would detect it."""
    other = save_model(tmp_path / "other", rope_theta=500)
    group = Group(folder, keys, model=other)
    try:
        for server in group.servers:
            assert server.end() == 1
            assert "engine 1 has rope" in server.output
        group.nothing_is_left()
    finally:
        group.close()
