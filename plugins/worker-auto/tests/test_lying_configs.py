"""A config.json that contradicts its tensors is rejected by both workers, by headers alone, in a sentence that names
file and tensor, or file and key.
"""

from __future__ import annotations

import json
import os

import pytest
import torch

from tenonry.config import EngineConfig
from tenonry.errors import ModelError
from tenonry.info import ModelInfo
from tenonry.interfaces.worker import WorkerContext
from tenonry_testkit.tiers import diagonal
from tenonry_worker_torch.worker import TorchWorker
from tenonry_worker_transformers.worker import TransformersWorker

SMALL = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
FAMILIES = {
    "llama": SMALL,
    "qwen3": SMALL,
    "mixtral": SMALL | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gemma3_text": SMALL | {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "gpt2": {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128,
             "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False},
}  # fmt: skip
# What gpt2 calls these.
GPT2_NAMES = {"num_hidden_layers": "n_layer", "hidden_size": "n_embd"}
LESS = {"layer_types": ["sliding_attention"]}
MORE = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
LIES = {
    "one layer more": {"num_hidden_layers": 3},
    "one layer less": {"num_hidden_layers": 1},
    "heads": {"num_attention_heads": 8},
    "KV heads": {"num_key_value_heads": 4},
    "head size": {"head_dim": 8},
    "hidden size": {"hidden_size": 64},
    "intermediate size": {"intermediate_size": 49},
    "one token more": {"vocab_size": 97},
    "one token less": {"vocab_size": 95},
    "no layers": {"num_hidden_layers": None},
    "no intermediate size": {"intermediate_size": None},
    "no hidden size": {"hidden_size": None},
    "no heads": {"num_attention_heads": None},
    "no vocabulary": {"vocab_size": None},
    "another family": {"model_type": "opt", "architectures": ["OPTForCausalLM"]},
    "a type of nothing": {"model_type": "lama"},
}
# gpt2 has one number of heads, which its tensors do not show, and no sizes of these.
NOT_OF_GPT2 = {
    "heads",
    "KV heads",
    "head size",
    "intermediate size",
    "no intermediate size",
    "no heads",
}
WORKERS = {"torch": TorchWorker, "transformers": TransformersWorker}
CASES = [
    (family, lie)
    for family in FAMILIES
    for lie in LIES
    if family != "gpt2" or lie not in NOT_OF_GPT2
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Family → folder with a tiny model of it."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    found = {}
    for family, values in FAMILIES.items():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**values))
        found[family] = tmp_path_factory.mktemp(family)
        model.save_pretrained(found[family])
    return found


def built(worker, folder):
    info = ModelInfo(
        name="test", path=str(folder), architecture="Test", max_model_len=64, vocab_size=96
    )
    config = EngineConfig(model=str(folder), device="cpu", batch_invariant=False)  # weights stay
    return worker(WorkerContext(config, info, max_model_len=64))


def examined(worker, folder):
    return built(worker, folder).examine()


def lying(folder, target, family, changes):
    """The folder again with a changed config.json; None takes a key away."""
    config = json.loads((folder / "config.json").read_text())
    names = GPT2_NAMES if family == "gpt2" else {}
    for key, value in changes.items():
        config[names.get(key, key)] = value
    if family == "gemma3_text" and "num_hidden_layers" in changes:
        config |= {1: LESS, 3: MORE}.get(changes["num_hidden_layers"], {"layer_types": None})
    kept = {key: value for key, value in config.items() if value is not None}
    (target / "config.json").write_text(json.dumps(kept))
    os.link(folder / "model.safetensors", target / "model.safetensors")
    return target


@pytest.mark.parametrize("name", WORKERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_truth_is_accepted(saved, tmp_path, family, name):
    folder = lying(saved[family], tmp_path, family, {})
    assert examined(WORKERS[name], folder).num_parameters > 0


@pytest.mark.parametrize(("case", "name"), diagonal(CASES, WORKERS))
@pytest.mark.slow
def test_a_lie_is_named(saved, tmp_path, case, name):
    family, lie = case
    folder = lying(saved[family], tmp_path, family, LIES[lie])
    with pytest.raises(ModelError) as caught:
        examined(WORKERS[name], folder)
    said = str(caught.value)
    assert "\n" not in said
    assert str(folder) in said
    assert "config.json" in said or "model type" in said


@pytest.mark.parametrize("name", WORKERS)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_head_that_is_stored_is_used_whatever_the_config_says(saved, tmp_path, family, name):
    """As `generate` of transformers does: two different tensors are not one, so the lie changes no answer."""
    from safetensors.torch import load_file

    folder = lying(saved[family], tmp_path, family, {"tie_word_embeddings": True})
    tensors = load_file(folder / "model.safetensors")
    embedding = "transformer.wte.weight" if family == "gpt2" else "model.embed_tokens.weight"
    assert not torch.equal(tensors["lm_head.weight"], tensors[embedding])
    worker = built(WORKERS[name], folder)
    worker.load()
    module = worker.model.module if name == "torch" else worker.model.calls.module
    assert torch.equal(module.get_output_embeddings().weight, tensors["lm_head.weight"])
    assert torch.equal(module.get_input_embeddings().weight, tensors[embedding])
    worker.shutdown()
