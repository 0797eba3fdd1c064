"""Small experts are computed in one operation, if that is the module's function, and only for few tokens."""

from __future__ import annotations

import pytest
import state_families  # noqa: F401 - adds its families
import torch
import worker_families
import worker_tools
from torch import nn
from transformers.activations import ACT2FN

from tenonry_worker_torch.changes import Changes
from tenonry_worker_torch_cpu.dense_experts import MAX_WASTE, DenseExperts, use_dense_experts


def experts_of(family, dtype=torch.float32):
    model = worker_families.build(family, dtype=dtype)
    return next(part for part in model.modules() if hasattr(part, "gate_up_proj"))


def given(module, tokens, dtype=torch.float32):
    num_experts, hidden, _ = module.down_proj.shape
    torch.manual_seed(tokens)
    weights, chosen = torch.rand(tokens, num_experts).topk(2, dim=-1)
    return torch.randn(tokens, hidden).to(dtype), chosen, weights.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 64])
@pytest.mark.parametrize("family", ["mixtral", "qwen3_next"])
@torch.no_grad()
def test_dense_experts_compute_what_the_module_does(family, tokens, dtype):
    module = experts_of(family, dtype)
    wanted = module(*given(module, tokens, dtype))
    assert use_dense_experts(module, Changes()) == 1
    got = module(*given(module, tokens, dtype))
    assert isinstance(module.forward, DenseExperts)
    assert got.dtype == wanted.dtype
    error = (got.float() - wanted.float()).norm() / wanted.float().norm()
    assert error < (1e-5 if dtype == torch.float32 else 2e-2)


@torch.no_grad()
def test_many_tokens_are_sorted_by_expert_as_before():
    module = experts_of("mixtral")
    dense = DenseExperts(module)
    seen = []
    dense.own_code = lambda hidden, *_: seen.append(len(hidden)) or hidden
    limit = MAX_WASTE // dense.waste(2)
    for tokens in (limit, limit + 1):
        dense(*given(module, tokens))
    assert seen == [limit + 1]


class Plain(nn.Module):
    """Experts that look as those of transformers do."""

    is_transposed = False
    scale = 1.0

    def __init__(self, inner=8, hidden=16):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(4, 2 * inner, hidden))
        self.down_proj = nn.Parameter(torch.randn(4, hidden, inner))

    def _apply_gate(self, x):
        gate, up = x.chunk(2, -1)
        return ACT2FN["silu"](gate) * up

    def forward(self, hidden_states, top_k_index, top_k_weights):
        out = torch.zeros_like(hidden_states)
        for token, (experts, weights) in enumerate(zip(top_k_index, top_k_weights, strict=True)):
            for expert, weight in zip(experts, weights, strict=True):
                inner = self._apply_gate(self.gate_up_proj[expert] @ hidden_states[token])
                out[token] += self.scale * weight * (self.down_proj[expert] @ inner)
        return out


class Louder(Plain):
    scale = 1.1


class Transposed(Plain):
    is_transposed = True


def test_experts_that_only_look_so_keep_their_own_code():
    assert use_dense_experts(Plain(), Changes()) == 1
    assert use_dense_experts(Louder(), Changes()) == 0
    assert use_dense_experts(Transposed(), Changes()) == 0


def test_large_experts_are_never_copied():
    size = int((MAX_WASTE / 18) ** 0.5) + 1
    assert use_dense_experts(Plain(size, size), Changes()) == 0
    assert use_dense_experts(Plain(size - 8, size - 8), Changes()) == 1


def test_dense_experts_are_part_of_what_fuse_switches_off():
    model = worker_tools.loaded(worker_families.build("mixtral"))
    dense = [
        part
        for part in model.module.modules()
        if isinstance(vars(part).get("forward"), DenseExperts)
    ]
    assert len(dense) == 3
    off = worker_tools.loaded(worker_families.build("mixtral"), fuse=False)
    assert not any(
        isinstance(vars(part).get("forward"), DenseExperts) for part in off.module.modules()
    )
