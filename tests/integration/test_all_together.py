"""Structured output, adapters, prefix cache, preemption, two ranks and two API servers in one server: concurrent
requests get the same answers as alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jsonschema
import openai
import pytest
import torch
from safetensors.torch import save_file
from server_process import ForkedServer, Server

from tenonry_demo_model import model_path

pytestmark = pytest.mark.timeout(300)
DEMO = Path(model_path())
BLOCK_SIZE = 4
SHARED = "Once upon a time there was a little girl who had a red ball. One day she went to the park with her dog. "
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]{1,6}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "person", "schema": PERSON, "strict": True},
}


def make_adapter(folder: Path, seed: int, rank: int) -> str:
    """A folder as peft writes it, with weights that change the answers."""
    config = json.loads((DEMO / "config.json").read_text())
    hidden = config["hidden_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    widths = {
        "q_proj": head * config["num_attention_heads"],
        "v_proj": head * config["num_key_value_heads"],
        "o_proj": hidden,
    }
    inputs = {"o_proj": widths["q_proj"]}
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, width in widths.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            given = inputs.get(name, hidden)
            down = torch.randn(rank, given, generator=generator) * given**-0.5
            tensors[f"{prefix}.lora_A.weight"] = down
            tensors[f"{prefix}.lora_B.weight"] = torch.randn(width, rank, generator=generator) * 0.3
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": [*widths]}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return str(folder)


def requests() -> list[dict]:
    """Each adapter and the model itself, with and without a schema, greedy and drawn; all begin alike."""
    asked = []
    for place, model in enumerate(["tiny", "first", "second"] * 2):
        for is_drawn in (False, True):
            for schema in (None, SCHEMA):
                content = SHARED + "She said hello. " * (place % 4)
                fields = {"response_format": schema} if schema else {}
                fields |= {"temperature": 0.9, "seed": place} if is_drawn else {"temperature": 0}
                messages = [{"role": "user", "content": content}]
                length = 48 if schema else 32
                asked.append({"model": model, "messages": messages, "max_tokens": length, **fields})
    return asked


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("adapters")
    modules = [
        f"first={make_adapter(root / 'a', 1, 4)}",
        f"second={make_adapter(root / 'b', 2, 8)}",
    ]
    arguments = f"""
        --load-format auto --dtype float32 --worker torch --tensor-parallel-size 2 --api-server-count 2 --max-loras 2
        --block-size {BLOCK_SIZE} --num-gpu-blocks-override 100 --max-num-seqs 12 --max-num-batched-tokens 64
        --max-model-len 256
    """.split()
    arguments += ["--lora-modules", *modules]
    started = ForkedServer(DEMO, *arguments, OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE")
    try:
        yield started.ready()
        started.process.terminate()
        assert started.end() == 0, started.output
    finally:
        started.close()


def ask(client: openai.OpenAI, fields: dict) -> tuple[str | None, str, list[str]]:
    """Text, why it ended, and its tokens."""
    (choice,) = client.chat.completions.create(**fields, logprobs=True).choices
    assert choice.logprobs is not None
    return (
        choice.message.content,
        choice.finish_reason,
        [one.token for one in choice.logprobs.content or ()],
    )


@pytest.mark.nightly
def test_all_at_once_equals_each_alone(server):
    assert {"engine 0", "api-server 1", "api-server 2"} <= set(server.pids())
    asked = requests()
    with server.client() as client:
        alone = [ask(client, fields) for fields in asked]
        assert not metric(server, "num_preemptions_total")
        with ThreadPoolExecutor(len(asked)) as pool:
            together = list(pool.map(lambda fields: ask(client, fields), asked))
    assert together == alone
    assert metric(server, "num_preemptions_total") > 0
    assert metric(server, "prefix_cache_hits_total") > 0
    for fields, (text, reason, _) in zip(asked, alone, strict=True):
        if "response_format" in fields and reason == "stop":
            jsonschema.validate(json.loads(text or ""), PERSON)
    greedy = {
        (fields["model"], fields["messages"][0]["content"])
        for fields in asked
        if not fields["temperature"]
    }
    assert len(greedy) > 3
    plain = [
        text
        for fields, (text, _, _) in zip(asked, alone, strict=True)
        if "response_format" not in fields
    ]
    assert len(set(plain)) == len(plain)  # adapters and seeds change the answers
    checked = [
        reason
        for fields, (_, reason, _) in zip(asked, alone, strict=True)
        if "response_format" in fields
    ]
    assert checked.count("stop") >= len(checked) / 2


def metric(server: Server, name: str) -> float:
    """The sum over engines, as Prometheus would see it."""
    page = server.get("/metrics")[1].splitlines()
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in page if line.startswith(f"tenonry:{name}{{")
    )
