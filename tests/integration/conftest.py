"""Fixtures of the integration tests: real processes, no GPU, no network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
