"""Comparisons of a deep model: few layers with long prompts, and all of them with a few tokens."""

from __future__ import annotations

import pytest
import torch
import worker_families
import worker_tools

from tenonry.errors import ModelError
from tenonry_worker_torch.fuse import decoder
from tenonry_worker_torch.fuse.decoder import FusedForward
from tenonry_worker_torch.fuse.short_stack import Passed, short_stack
from tenonry_worker_torch_cpu.passes import packing as packing_pass

pytestmark = pytest.mark.slow  # whole models

DEEP = worker_families.SMALL | {"num_hidden_layers": 9, "hidden_size": 32}
GEMMA = DEEP | {"head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 8}
EXPERTS = DEEP | {
    "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 2,
}  # fmt: skip
MODELS = {
    "llama": ("llama", DEEP),
    "gemma2": ("gemma2", GEMMA),
    "qwen3_moe": ("qwen3_moe", EXPERTS),
}


@pytest.fixture(autouse=True)
def deep_models(monkeypatch):
    for name, model in MODELS.items():
        monkeypatch.setitem(worker_families.FAMILIES, f"deep {name}", model)


def build(name, **options):
    return worker_families.build(f"deep {name}", seed=0, **options)


def layers_run(model, monkeypatch):
    """Number of runs of each layer's own code while the model is loaded."""
    runs = [0] * len(model.model.layers)

    def count(number):
        def counted(*_):
            runs[number] += 1

        return counted

    for number, layer in enumerate(model.model.layers):
        layer.register_forward_pre_hook(count(number))
    return runs


@pytest.mark.parametrize(
    ("name", "compared"), [("llama", [0, 8]), ("gemma2", [0, 1, 8]), ("qwen3_moe", [0, 1, 8])]
)
def test_layers_that_repeat_themselves_run_once_for_their_attention(name, compared, monkeypatch):
    model = build(name)
    runs = layers_run(model, monkeypatch)
    loaded = worker_tools.loaded(model)
    assert isinstance(loaded.forward, FusedForward)
    assert [number for number, count in enumerate(runs) if count > 1] == compared
    assert min(runs) == 1  # the probe run


def test_a_layer_with_settings_of_its_own_is_compared():
    model = build("llama")
    model.model.layers[4].mlp.limit = 7.0
    model.model.layers[6].self_attn.layer_idx = 77  # its place is no setting
    loaded = worker_tools.loaded(model)
    found = short_stack(model, loaded.layers.values())
    assert found.numbers == [0, 4, 8]


def test_a_layer_with_a_window_of_its_own_is_compared():
    model = build("gemma2")
    loaded = worker_tools.loaded(model)
    list(loaded.layers.values())[5].spec.window = 3
    found = short_stack(model, loaded.layers.values())
    assert found.numbers == [0, 1, 5, 8]


def test_the_model_is_whole_again_after_the_comparison():
    model = build("llama")
    before = list(model.model.layers)
    worker_tools.loaded(model)
    assert list(model.model.layers) == before
    assert not any(isinstance(layer, Passed) for layer in model.modules())
    assert not any(layer._forward_hooks for layer in model.modules())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("part", ["qkv", "out", "gate_up", "down"])
def test_wrong_weights_of_one_layer_among_its_like_are_found(part, dtype, monkeypatch):
    """Layers 4 and 5 have each other's: the short stack has neither."""
    original = decoder.fused_layers

    def mixed_up(model, layers):
        fused = original(model, layers)
        where = "attention" if part in ("qkv", "out") else "mlp"
        first = getattr(fused[4], where)
        second = getattr(fused[5], where)
        of_first = getattr(first, part)
        setattr(first, part, getattr(second, part))
        setattr(second, part, of_first)
        return fused

    monkeypatch.setattr(decoder, "fused_layers", mixed_up)
    with pytest.raises(ModelError, match=r"LlamaForCausalLM fails the self check.*prompt 1 of 1"):
        worker_tools.loaded(build("llama", dtype=dtype))


def test_a_short_stack_that_differs_leaves_the_verdict_to_all_layers(monkeypatch):
    """For example if a model's layers are more than a list of functions of hidden states."""
    monkeypatch.setattr(Passed, "forward", lambda self, hidden, *_, **__: hidden * 2)
    model = build("llama")
    runs = layers_run(model, monkeypatch)
    loaded = worker_tools.loaded(model)
    assert isinstance(loaded.forward, FusedForward)
    assert min(runs) > 1


def test_what_is_left_out_gives_as_its_neighbours_do():
    left_out = Passed(torch.nn.Identity(), "Llama", [False, True])
    assert left_out(torch.ones(1)) == (torch.ones(1),)
    left_out.gives_tuples.append(False)
    assert left_out(torch.ones(1)) == torch.ones(1)


def test_a_model_that_keeps_its_own_code_is_compared_whole_before_weights_are_packed(monkeypatch):
    order = []
    original = packing_pass.pack_linears

    def packed(*arguments):
        order.append("pack")
        return original(*arguments)

    monkeypatch.setattr("tenonry_worker_torch_cpu.passes.packing.pack_linears", packed)
    monkeypatch.setattr(decoder, "fused_head", lambda _: None)
    model = build("llama", dtype=torch.bfloat16)
    for layer in model.model.layers:
        layer.register_forward_pre_hook(lambda module, _: order.append(module.self_attn.layer_idx))
    worker_tools.loaded(model)
    packing = order.index("pack")
    assert order[:packing].count(4) == 1 + 3  # the probe run, and three prompts alone


def test_random_weights_of_large_matrices_repeat_no_row(monkeypatch):
    from tenonry_worker_torch.fuse import trial

    monkeypatch.setattr(trial, "STORE", 101)
    matrices = [torch.nn.Linear(16, 24, bias=False) for _ in range(2)]
    module = torch.nn.Sequential(*matrices)
    module.requires_grad_(False)
    trial.randomise(module)
    rows = torch.cat([matrix.weight for matrix in matrices])
    distances = torch.cdist(rows, rows) + torch.eye(len(rows))
    assert distances.min() > 0.1
    assert 0.8 < float(rows.std() * 4) < 1.2


@pytest.mark.parametrize(
    "name", ["layers.4.self_attn.q_proj", "layers.7.mlp.down_proj", "norm", "lm_head"]
)
def test_a_weight_with_nan_is_named(name, caplog):
    """For any settings: without the name, the error would be attributed to batch invariance."""
    model = build("llama")
    owner = model if name == "lm_head" else model.model
    weight = owner.get_submodule(name).weight
    with torch.no_grad():
        weight.view(-1)[3] = float("nan")
    with pytest.raises(ModelError, match=rf"computes NaN: .*{name}.weight \(1 of \d+ values\)"):
        worker_tools.loaded(model)
    worker_tools.loaded(model, skip_check=True)
    assert f"{name}.weight" in caplog.text
