from __future__ import annotations

import json

import pytest
import torch

SMALL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32, "hidden_size": 16,
    "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
    "max_position_embeddings": 64, "tie_word_embeddings": False, "dtype": "float32",
}  # fmt: skip


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small tensors gain nothing from threads, and tests share the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def write_config(tmp_path):
    """Writes the config.json of a small Llama, with changes; returns its folder."""

    def write(**changes):
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(SMALL | changes))
        return folder

    return write


@pytest.fixture
def small_model(write_config):
    """A folder with the small Llama, weights included, and the model that was saved."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    folder = write_config()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(LlamaConfig(**SMALL))
    model.save_pretrained(folder)
    return folder, model
