"""Fixtures of the integration tests: real processes, no GPU, no network."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

sys.path.insert(0, str(Path(__file__).parent))

import psutil
from server_process import ForkedServer, Server, eventually

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "eos_token_id": 1,
    "torch_dtype": "float32",
}


@pytest.fixture
def weightless_model(tmp_path: Path) -> Path:
    """A model folder that holds only its configuration: enough for the null worker, or for dummy weights."""
    folder = tmp_path / "weightless"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="module")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with a configuration, a byte-level tokenizer and a chat template; weights are random or unused."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 257,
        "max_position_embeddings": 512, "eos_token_id": 256, "torch_dtype": "float32",
    }))  # fmt: skip
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE(vocab={**{c: i for i, c in enumerate(alphabet)}, "<eos>": 256}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<eos>",
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture
def serve(text_model: Path) -> Iterator[Callable[..., Server]]:
    """A function that starts servers; they are stopped when the test ends."""
    servers: list[Server] = []

    def start(*arguments: str, worker: str = "null") -> Server:
        servers.append(ForkedServer(text_model, "--worker", worker, *arguments))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(scope="module")
def one_thread():
    """Small models compute on one thread; more would slow each other down."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the instance's socket files."""
    return tmp_path_factory.mktemp("t")


@pytest.fixture
def start(text_model: Path, temporary: Path) -> Iterator[Callable[..., Server]]:
    """A function that starts two API servers; after the test no process and no socket file of theirs may exist."""
    servers: list[Server] = []
    seen: set[int] = set()

    def run(*arguments: str, kind: type[Server] = ForkedServer) -> Server:
        arguments = ("--worker", "null", "--api-server-count", "2", *arguments)
        servers.append(kind(text_model, *arguments, TMPDIR=str(temporary)))
        return servers[-1]

    yield run
    for server in servers:
        if server.process.poll() is None:
            seen |= set(server.pids().values())
        server.close()
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in seen))
    eventually(lambda: list(temporary.iterdir()) == [])
