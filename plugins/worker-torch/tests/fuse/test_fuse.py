"""Optimisations compute the same, and are skipped if they would not."""

from __future__ import annotations

import pytest
import torch
import worker_families
import worker_tools

from tenonry_worker_torch.fuse import rope
from tenonry_worker_torch.fuse.linear import merge
from tenonry_worker_torch.fuse.norm import FEW_ROWS, RMSNorm, rms_norm_of
from tenonry_worker_torch.fuse.rope import rope_table, rotate
from tenonry_worker_torch.fuse.verify import layer_agrees
from tenonry_worker_torch.loading.rotary import call_rotary


def relative(got, wanted):
    got, wanted = got.detach().float(), wanted.detach().float()
    return float((got - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("rows", [1, FEW_ROWS, FEW_ROWS + 1, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "gemma"])
def test_rms_norm_is_the_models_own(family, dtype, rows):
    module = worker_families.build(family, dtype=dtype).model.norm
    torch.manual_seed(0)
    x = torch.randn(rows, 64).to(dtype) * 5
    kept = x.clone()
    norm = rms_norm_of(module)
    assert relative(norm(x), module(x)) < (1e-5 if dtype == torch.float32 else 5e-3)
    assert torch.equal(x, kept)  # the residual stream is read again


def test_a_norm_that_is_something_else_is_not_taken_for_one():
    class Shifted(type(worker_families.build("llama").model.norm)):
        def forward(self, x):
            return super().forward(x) + 0.01

    assert rms_norm_of(Shifted(64)) is None
    assert rms_norm_of(torch.nn.LayerNorm(64)) is None


def test_norm_without_weight_over_heads():
    x = torch.randn(40, 3, 16)
    wanted = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(RMSNorm(None, 16, 1e-6)(x), wanted)


@pytest.mark.parametrize("size", [16, 8])
def test_rotation_from_the_table_is_the_models_formula(size):
    """Whole heads, and the first half of each only; into another tensor and in place."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    torch.manual_seed(0)
    x = torch.randn(5, 3, 16)
    angles = torch.rand(5, size // 2) * 6
    cos, sin = (torch.cat([part, part], -1) for part in (angles.cos(), angles.sin()))
    signed = torch.cat([-sin[:, : size // 2], sin[:, size // 2 :]], -1)
    turned = apply_rotary_pos_emb(
        x[None].transpose(1, 2)[..., :size],
        x[None].transpose(1, 2)[..., :size],
        cos[None],
        sin[None],
    )[0]
    wanted = torch.cat([turned.transpose(1, 2)[0], x[..., size:]], -1)
    other, same = torch.empty_like(x), x.clone()
    rotate(x, cos[:, None], signed[:, None], other)
    rotate(same, cos[:, None], signed[:, None], same)
    torch.testing.assert_close(other, wanted)
    torch.testing.assert_close(same, wanted)


def test_the_table_is_per_layer_type_where_the_model_has_several():
    model = worker_families.build("gemma3").model
    positions = torch.tensor([[3, 50]])
    for kind in ("full_attention", "sliding_attention"):
        table = rope_table(model.rotary_emb, kind, 64, torch.float32)
        cos, _ = call_rotary(model.rotary_emb, torch.zeros(1), positions, kind)
        assert torch.equal(table.at(positions[0])[0][:, 0], cos[0])


def test_a_table_of_several_pieces_is_what_the_module_makes_at_once(monkeypatch):
    rotary = worker_families.build("llama").model.rotary_emb
    whole = rope_table(rotary, "full_attention", 64, torch.float32)
    monkeypatch.setattr(rope, "PIECE", 24)
    in_pieces = rope_table(rotary, "full_attention", 64, torch.float32)
    assert torch.equal(in_pieces.cos, whole.cos)
    assert torch.equal(in_pieces.sin, whole.sin)


def test_very_long_tables_are_not_made():
    rotary = worker_families.build("llama").model.rotary_emb
    assert rope_table(rotary, "full_attention", 1 << 20, torch.float32) is None


def test_merged_projections_share_their_memory_with_the_modules():
    parts = [torch.nn.Linear(8, 4), torch.nn.Linear(8, 6, bias=False)]
    x = torch.randn(3, 8)
    wanted = torch.cat([part(x) for part in parts], -1)
    merged = merge(parts)
    torch.testing.assert_close(merged(x), wanted)
    torch.testing.assert_close(torch.cat([part(x) for part in parts], -1), wanted)
    assert parts[1].weight.data_ptr() == merged.weight[4:].data_ptr()


class _Damped(torch.nn.Module):
    """A residual that is scaled: looks like Llama by its attributes and is not."""

    def __init__(self, layer):
        super().__init__()
        self.self_attn, self.mlp = layer.self_attn, layer.mlp
        self.input_layernorm, self.post_attention_layernorm = (
            layer.input_layernorm,
            layer.post_attention_layernorm,
        )

    def forward(self, hidden_states, attention_mask, position_embeddings=None, **kwargs):
        attended, _ = self.self_attn(
            self.input_layernorm(hidden_states), position_embeddings, attention_mask
        )
        hidden_states = hidden_states + 0.97 * attended
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))


def test_a_layer_that_only_looks_like_a_known_one_runs_its_own_code():
    model = worker_families.build("llama")
    model.model.layers[0] = _Damped(model.model.layers[0])
    kept = worker_tools.loaded(model)
    assert type(kept.forward).__name__ == "ModuleForward"


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gemma3", "phi3", "mixtral"])
def test_layers_are_compared_in_float32_with_random_weights(family):
    model = worker_tools.loaded(worker_families.build(family, dtype=torch.bfloat16), fuse=False)
    module = model.module.model
    spec = next(iter(model.layers.values())).spec
    kind = (getattr(model.module.config, "layer_types", None) or ["full_attention"])[0]
    before = {name: weight.clone() for name, weight in module.state_dict().items()}
    assert layer_agrees(module.layers[0], spec, kind, module.rotary_emb)
    assert all(torch.equal(weight, before[name]) for name, weight in module.state_dict().items())
    module.layers[0].self_attn.o_proj.register_forward_hook(
        lambda _module, _input, output: output + 0.01
    )
    assert not layer_agrees(module.layers[0], spec, kind, module.rotary_emb)


def test_fusion_can_be_switched_off():
    model = worker_tools.loaded(worker_families.build("llama"), fuse=False)
    assert type(model.forward).__name__ == "ModuleForward"
