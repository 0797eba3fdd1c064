"""Several models in one server, with real engines and the official client: loads, evictions, deaths and the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import psutil
import pytest
import torch
from host_server import MODELS, NULL, HostServer
from safetensors.torch import save_file
from server_process import eventually

from tenonry.cli import main

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("one_thread")]

ADAPTED = """
max_num_seqs: 4
max_model_len: 256
kv_cache_memory_bytes: 16000000
api_key: [k]
enable_operator_routes: true
models:
  tiny: {model: demo, max_loras: 1, lora_modules: [pirate=%s]}
  other: {model: demo}
"""


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., HostServer]]:
    file = tmp_path / "models.yaml"
    file.write_text(MODELS)
    servers: list[HostServer] = []

    def start(*arguments: str) -> HostServer:
        servers.append(HostServer(file, *arguments))
        server: HostServer = servers[-1].ready()
        return server

    yield start
    for server in servers:
        server.close()


def test_models_load_on_request_once_and_leave_when_idle(serve):
    server = serve(*NULL, "--model-idle-timeout", "1")
    assert server.statuses() == {"tiny": "unloaded", "other": "unloaded"}
    assert server.engine_pids() == []
    with pytest.raises(
        openai.NotFoundError, match="'nope' is not served here; served: tiny, other"
    ):
        server.complete("nope")
    with ThreadPoolExecutor(4) as clients:
        texts = [clients.submit(server.complete, "tiny", temperature=0) for _ in range(4)]
    assert len({text.result() for text in texts}) == 1
    assert server.output.count("loading model tiny") == 1
    eventually(lambda: server.statuses()["tiny"] == "unloaded")
    eventually(lambda: not server.engine_pids())
    assert server.process.poll() is None


def test_a_death_and_an_eviction_leave_the_streams_of_others(serve):
    server = serve(*NULL, "--pin-model", "tiny", "--engine-recovery", "end")
    assert server.statuses() == {"tiny": "ready", "other": "unloaded"}
    (pinned,) = server.engine_pids()
    seen = threading.Event()

    def stream() -> int:
        with server.client() as client:
            chunks = client.completions.create(
                model="tiny",
                prompt="Once",
                max_tokens=1500,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            count = 0
            for _ in chunks:
                count += 1
                seen.set()
            return count

    with ThreadPoolExecutor(1) as clients:
        running = clients.submit(stream)
        assert seen.wait(60)
        server.complete("other")
        (other,) = set(server.engine_pids()) - {pinned}
        os.kill(other, signal.SIGKILL)
        eventually(lambda: server.statuses()["other"] in {"failed", "unloaded"})
        assert server.get("/health")[0] == server.get("/ready")[0] == 200
        assert running.result(120) > 100
    assert server.complete("tiny")
    assert pinned in server.engine_pids()
    eventually(lambda: b"ready" in ready_again(server))


def ready_again(server: HostServer) -> bytes:
    """Status of the model whose engine was killed, once a request may load it again."""
    with contextlib.suppress(openai.APIStatusError):
        server.complete("other")
    return server.statuses()["other"].encode()


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """An adapter of the demo model."""
    folder = tmp_path / "pirate"
    folder.mkdir()
    name = "base_model.model.model.layers.0.mlp.down_proj.lora_"
    drawn = torch.Generator().manual_seed(0)
    tensors = {
        f"{name}A.weight": torch.randn(4, 640, generator=drawn),
        f"{name}B.weight": torch.randn(256, 4, generator=drawn),
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 64, "target_modules": ["down_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def test_an_adapter_loads_its_model_which_sleeps_and_wakes(tmp_path, adapter):
    file = tmp_path / "adapted.yaml"
    file.write_text(ADAPTED % adapter)
    with contextlib.closing(HostServer(file)) as server:
        server.ready()
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as client:

            def cards() -> dict[str, tuple[str, str | None]]:
                return {each.id: (each.status, each.parent) for each in client.models.list()}

            def complete(model: str) -> str:
                fields = {"prompt": "Once", "max_tokens": 8, "temperature": 0}
                return client.completions.create(model=model, **fields).choices[0].text

            def tell(path: str, **query: str) -> None:
                client.post(f"{server.url}{path}", cast_to=object, options={"params": query})

            assert cards()["pirate"] == ("unloaded", "tiny")
            spoken = complete("pirate")
            assert cards() == {
                "tiny": ("ready", None), "pirate": ("ready", "tiny"), "other": ("unloaded", None)
            }  # fmt: skip
            assert complete("tiny") != spoken
            tell("/sleep", model="pirate")
            assert cards()["tiny"] == ("sleeping", None)
            assert cards()["pirate"] == ("sleeping", "tiny")
            tell("/wake_up", model="tiny")
            assert cards()["pirate"] == ("ready", "tiny")
            assert complete("pirate") == spoken


@pytest.mark.nightly  # evictions: hosting/test_host.py
def test_one_model_at_a_time_and_an_end_that_leaves_nothing(serve):
    server = serve(*NULL, "--max-loaded-models", "1")
    for model in ("tiny", "other", "tiny"):
        assert server.complete(model)
        assert [name for name, status in server.statuses().items() if status == "ready"] == [model]
        assert len(server.engine_pids()) == 1
    children = psutil.Process(server.process.pid).children(recursive=True)
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0
    assert psutil.wait_procs(children, 20)[1] == []


@pytest.mark.nightly  # the end of loads: hosting/test_host.py
def test_a_signal_while_a_model_loads_ends_the_server(serve):
    server = serve(*NULL)

    def refused() -> bool:
        try:
            server.complete("tiny")
        except openai.APIError:
            return True
        return False

    with ThreadPoolExecutor(1) as clients:
        waiting = clients.submit(refused)
        server.wait_for("(loading model tiny)")
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
        assert waiting.result(20)


def test_a_model_that_never_fits_is_refused_at_the_start(capsys):
    words = [
        "serve",
        "demo",
        "smollm2",
        "--device",
        "cpu",
        "--model-memory-budget",
        "100m",
        "--port",
        "0",
    ]
    assert main(words) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("tenonry: error: the model 'demo' needs 0.51 GiB (weights 0.01 GiB")
    assert "the budget is 0.09 GiB" in error
