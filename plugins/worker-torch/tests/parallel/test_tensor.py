"""Sharding of a model without weights, style by style."""

from __future__ import annotations

import pytest
import torch
import worker_families
from torch import nn

from tenonry.errors import ModelError
from tenonry_torch_base.parallel.groups import TensorGroup
from tenonry_torch_base.parallel.layers import GatherLinear, RowLinear, VocabularyLookup
from tenonry_torch_base.parallel.tensor import shard_layers


def skeleton(family, **changes):
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    name, values = worker_families.FAMILIES[family]
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(CONFIG_MAPPING[name](**values | changes))


def cut(family, size=2, rank=0, **changes):
    model = skeleton(family, **changes)
    return model, shard_layers(model, TensorGroup(rank, size))


def test_linear_layers_cut_along_outputs_stay_what_they_are():
    model, shards = cut("llama")
    layer = model.model.layers[0]
    assert type(layer.self_attn.q_proj) is nn.Linear
    assert layer.self_attn.q_proj.out_features == 32
    assert layer.self_attn.k_proj.out_features == 16
    assert isinstance(layer.mlp.down_proj, RowLinear)
    assert list(layer.mlp.down_proj.weight.shape) == [64, 48]
    assert isinstance(model.lm_head, GatherLinear)
    assert len(shards) == 3 * 7 + 1


def test_a_bias_is_cut_with_the_outputs_and_kept_whole_with_the_inputs():
    model, shards = cut("llama-biased")
    attention = model.model.layers[0].self_attn
    assert list(attention.q_proj.bias.shape) == [32]
    assert list(attention.o_proj.bias.shape) == [64]
    assert "model.layers.0.self_attn.o_proj.bias" not in shards


def test_a_tied_embedding_shares_the_heads_piece_of_the_vocabulary():
    model, shards = cut("llama-biased", vocab_size=97)
    embedding = model.get_input_embeddings()
    assert isinstance(embedding.forward, VocabularyLookup)
    assert list(embedding.weight.shape) == list(model.lm_head.weight.shape) == [49, 64]
    assert shards["model.embed_tokens.weight"] == shards["lm_head.weight"]
    assert not isinstance(cut("llama")[0].get_input_embeddings().forward, VocabularyLookup)


def test_kv_heads_are_repeated_where_there_are_fewer_than_ranks():
    found = [
        cut("llama", 4, rank)[1]["model.layers.0.self_attn.k_proj.weight"] for rank in range(4)
    ]
    assert [(shard.index, shard.count) for shard in found] == [(0, 2), (0, 2), (1, 2), (1, 2)]


def test_experts_are_cut_inside_and_summed():
    model, shards = cut("mixtral")
    experts = model.model.layers[0].mlp.experts
    assert list(experts.gate_up_proj.shape) == [4, 96, 64]
    assert list(experts.down_proj.shape) == [4, 64, 48]
    assert shards["model.layers.0.mlp.experts.gate_up_proj"].parts == 2
    assert len(experts._forward_hooks) == 1


@pytest.mark.parametrize(
    ("size", "changes", "text"),
    [
        (3, {}, "has 4 attention heads, which tensor_parallel_size=3 does not divide"),
        (
            2,
            {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 3},
            "has 3 KV heads: .*=2 must divide",
        ),
        (
            4,
            {"intermediate_size": 98},
            r"gate_proj.weight of shape \[98, 64\] cannot be cut into 4 equal pieces",
        ),
    ],
)
def test_sizes_that_do_not_divide_are_refused_with_the_numbers(size, changes, text):
    with pytest.raises(ModelError, match=text):
        cut("llama", size, **changes)


def test_heads_that_the_plan_leaves_whole_need_not_divide():
    """Phi-3's plan gathers queries, keys and values: five KV heads on two ranks are no matter."""
    model, _ = cut("phi3", num_attention_heads=10, num_key_value_heads=5, hidden_size=160)
    assert isinstance(model.model.layers[0].self_attn.qkv_proj, GatherLinear)


def refused(model, text):
    with pytest.raises(ModelError, match=text):
        shard_layers(model, TensorGroup(0, 2))


def test_a_style_that_is_not_known_is_refused_by_name():
    model = skeleton("llama")
    model.config.base_model_tp_plan = {"layers.*.mlp.down_proj": "diagonal"}
    refused(
        model,
        "plans the style 'diagonal' for model.layers.*.mlp.down_proj.* use tensor_parallel_size=1",
    )


def test_a_layer_of_another_kind_is_refused_by_name():
    model = skeleton("llama")
    model.config.base_model_tp_plan = {"layers.*.mlp": "colwise"}
    refused(model, "model.layers.0.mlp is a LlamaMLP, which worker 'torch' cannot cut")


def test_a_plan_that_fits_nothing_is_refused():
    """Even if its head could be cut."""
    model = skeleton("llama")
    model.config.base_model_tp_plan = {"blocks.*.mlp": "colwise"}
    refused(model, "fits none of its layers")


def test_a_summed_module_must_be_cut_all_through():
    """An unsharded part would be added once per rank."""
    model = skeleton("mixtral")
    plan = {"layers.*.self_attn.q_proj": "colwise", "layers.*.mlp.experts": "moe_tp_experts"}
    model.config.base_model_tp_plan = plan
    refused(
        model, "experts.gate_up_proj is not in the tensor parallel plan .* summed over the ranks"
    )


def test_nothing_is_cut_twice():
    model = skeleton("llama")
    model.config.base_model_tp_plan = {
        "layers.*.mlp.up_proj": "colwise",
        "layers.0.mlp.up_proj": "colwise",
    }
    refused(model, "model.layers.0.mlp.up_proj.weight is cut twice")
