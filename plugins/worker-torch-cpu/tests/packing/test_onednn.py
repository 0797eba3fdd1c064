"""Weights that oneDNN lays out compute the same, are stored once, and can be read in rows."""

from __future__ import annotations

import pytest
import torch
import worker_families
import worker_tools

from tenonry_worker_torch.fuse.generic import PackedModule, pack_linears, unpack_read
from tenonry_worker_torch_cpu.packing.onednn import OneDnnPacking, can_pack, pack

CPU = torch.device("cpu")
needs_packing = pytest.mark.skipif(
    not can_pack(torch.bfloat16, CPU), reason="oneDNN has no bfloat16 on this CPU"
)


def relative(got, wanted):
    got, wanted = got.detach().float(), wanted.detach().float()
    return float((got - wanted).norm() / wanted.norm())


def packed_module(linear):
    return OneDnnPacking().module(linear)


@needs_packing
@pytest.mark.parametrize("rows", [1, 5, 200])
def test_packed_linear_computes_the_same(rows):
    torch.manual_seed(0)
    linear = torch.nn.Linear(96, 160).to(torch.bfloat16).requires_grad_(False)
    x, other = torch.randn(rows, 96).bfloat16(), torch.randn(rows, 160).bfloat16()
    packed = pack(linear.weight, linear.bias)
    with torch.inference_mode():
        assert relative(packed(x), linear(x)) < 5e-3
        assert relative(packed.add(x, other), linear(x) + other) < 8e-3
        assert relative(packed_module(linear)(x[None]), linear(x[None])) < 5e-3


@needs_packing
def test_code_that_reads_the_weight_of_a_packed_module_gets_it_in_rows():
    linear = torch.nn.Linear(96, 160).to(torch.bfloat16).requires_grad_(False)
    packed = packed_module(linear)
    with torch.inference_mode():
        assert torch.equal(packed.weight, linear.weight)
        assert torch.equal(packed.bias, linear.bias)


@needs_packing
def test_a_layer_whose_weight_the_code_reads_is_not_packed_in_the_end():
    """Both would be held: the packed one and the rows."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(96, 160), torch.nn.Linear(160, 32, bias=False))
    model.to(torch.bfloat16).requires_grad_(False)
    weights = [layer.weight.clone() for layer in model]
    x = torch.randn(3, 96).bfloat16()
    wanted = model(x)
    assert pack_linears(model, OneDnnPacking()) == 2
    assert unpack_read(model) == 0
    with torch.inference_mode():
        assert torch.equal(model[1].weight, weights[1])
    assert unpack_read(model) == 1
    assert [type(layer) for layer in model] == [PackedModule, torch.nn.Linear]
    assert torch.equal(model[1].weight, weights[1])
    assert model[1].bias is None
    assert model[0].weight is not None
    assert unpack_read(model) == 1
    assert [layer.weight.shape for layer in model] == [(160, 96), (32, 160)]
    assert relative(model(x), wanted) < 5e-3


@needs_packing
def test_weights_that_were_packed_are_not_kept_twice():
    module = worker_families.build("llama", dtype=torch.bfloat16)
    worker_tools.loaded(module)
    assert module.model.layers[0].mlp.up_proj.weight.numel() == 0
    assert module.lm_head.weight.numel() == 0
    assert module.model.embed_tokens.weight.numel() > 0
    tied = worker_families.build("llama-biased", dtype=torch.bfloat16)
    worker_tools.loaded(tied)
    assert tied.model.embed_tokens.weight.numel() > 0
