"""Modules that choose keys run over rows by their own code, and their own keys have a cache in blocks."""

from __future__ import annotations

import pytest
import torch
import worker_families
import worker_tools

from tenonry.errors import ModelError
from tenonry_torch_base.attention.choice import selection
from tenonry_torch_base.attention.indexer import RowIndexer, bind_indexers


def test_keys_by_which_a_model_chooses_are_layers_of_their_own():
    loaded = worker_tools.loaded(worker_families.build("glm_moe_dsa"))
    kinds = [
        (name.rpartition(".")[2], layer.spec.value_size) for name, layer in loaded.layers.items()
    ]
    assert kinds == [
        ("indexer", 0), ("self_attn", 12), ("self_attn", 12), ("indexer", 0), ("self_attn", 12),
    ]  # fmt: skip
    keys = loaded.layers["model.layers.0.self_attn.indexer"].spec
    assert keys.bytes_per_token(torch.float32) == 12 * 4
    assert not keys.indexed


def test_an_indexer_that_works_otherwise_is_refused_by_its_name():
    class OddIndexer(torch.nn.Module):
        def forward(self, hidden_states, attention_mask):
            return hidden_states

    model = worker_families.build("llama")
    model.model.layers[0].self_attn.indexer = OddIndexer()
    with pytest.raises(ModelError, match="OddIndexer chooses what attention sees in a way"):
        bind_indexers(model)


def test_binding_twice_is_binding_once_and_the_models_own_attention_runs_its_own_code():
    model = worker_families.build("deepseek_v32")
    wanted = model(input_ids=torch.tensor([[5, 6, 7]])).logits
    assert bind_indexers(model)
    own = model.model.layers[0].self_attn.indexer.forward
    assert isinstance(own, RowIndexer)
    assert bind_indexers(model)
    assert model.model.layers[0].self_attn.indexer.forward is own
    assert torch.equal(model(input_ids=torch.tensor([[5, 6, 7]])).logits, wanted)
    assert not bind_indexers(worker_families.build("llama"))


def test_a_choice_as_a_mask():
    hidden = float("-inf")
    chosen = torch.tensor([[4, 6, -1], [5, 5, 9]])
    assert selection(chosen, 4, torch.float32, first_key=3).tolist() == [
        [hidden, 0.0, hidden, 0.0],
        [hidden, hidden, 0.0, hidden],
    ]


def test_the_self_check_finds_a_choice_that_is_not_heeded(monkeypatch):
    from tenonry_torch_base.attention import pieces

    monkeypatch.setattr(
        pieces,
        "selection",
        lambda chosen, keys, dtype, first=0: torch.zeros(*chosen.shape[:-1], keys),
    )
    with pytest.raises(ModelError, match="DeepseekV32ForCausalLM fails the self check"):
        worker_tools.loaded(worker_families.build("deepseek_v32"))
