"""A small mixture of experts that engines share: its files, answers of `generate`, and requests to a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import torch

LENGTHS = (5, 40, 3, 21, 12, 30)
OUTPUT = 10


def save_model(path: Path, seed: int = 1, **values: int) -> Path:
    """A Qwen3-MoE with random weights."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    sizes = {
        "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 24, "max_position_embeddings": 1024,
    }  # fmt: skip
    config = Qwen3MoeConfig(**{**sizes, **values}, initializer_range=0.4)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3MoeForCausalLM(config).float().eval()
    model.save_pretrained(path)
    return path


def generated(folder: Path) -> list[list[int]]:
    """Answers of `generate` to `prompts`."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return [
        model.generate(
            torch.tensor([prompt]), max_new_tokens=OUTPUT, do_sample=False, eos_token_id=None, pad_token_id=0
        )[0, len(prompt):].tolist()
        for prompt in prompts()
    ]  # fmt: skip


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(3, 96, (length,), generator=generator).tolist() for length in LENGTHS]


def complete(
    client: openai.OpenAI,
    prompt: list[int],
    length: int = OUTPUT,
    *,
    engine: int | None = None,
    stream: bool = False,
) -> Any:
    """Greedy completion; on the engine of that number, if given."""
    return client.completions.create(
        model="tiny",
        prompt=prompt,
        max_tokens=length,
        temperature=0,
        stream=stream,
        extra_body={"ignore_eos": True, "return_token_ids": True},
        extra_headers={} if engine is None else {"X-Data-Parallel-Rank": str(engine)},
    )
