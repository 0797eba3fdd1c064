from __future__ import annotations

import pytest
import torch
from torch import nn

from tenonry_torch_base.attention.base import LayerSpec
from tenonry_torch_base.attention.layer import AttentionLayer
from tenonry_torch_base.attention.math import causal_attention
from tenonry_torch_base.attention.rank_heads import rank_heads_of
from tenonry_torch_base.parallel.groups import TensorGroup
from tenonry_torch_base.parallel.layers import RowLinear

SIZE = 4


def spec(heads, kv_heads):
    return LayerSpec(
        name="a",
        index=0,
        num_heads=heads,
        num_kv_heads=kv_heads,
        key_size=SIZE,
        value_size=SIZE,
        scaling=0.5,
    )


def attention(heads, rank, size, *, splits_input=True):
    module = nn.Module()
    module.o_proj = RowLinear(
        nn.Linear(heads * SIZE, 8), TensorGroup(rank, size), splits_input=splits_input
    )
    return module


class OneBackend:
    def forward(self, layer, query, key, value, _plan, _both):
        return causal_attention(query, key, value, layer.spec)


class Step:
    backend, plan = OneBackend(), None


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"), [(8, 4, 2), (8, 2, 4), (4, 4, 4), (6, 1, 3)]
)
def test_the_heads_of_all_ranks_together_are_all_heads(heads, kv_heads, size):
    query, key, value = (torch.randn(5, count, SIZE) for count in (heads, kv_heads, kv_heads))
    whole, total = spec(heads, kv_heads), torch.zeros(5, heads, SIZE)
    for rank in range(size):
        rank_heads = rank_heads_of(attention(heads, rank, size), whole)
        layer = AttentionLayer(rank_heads.of(whole), Step(), rank_heads)
        assert layer.spec.num_heads == heads // size
        assert layer.spec.num_kv_heads == max(1, kv_heads // size)
        total += rank_heads.attend(layer, query, key, value)
    assert torch.allclose(total, causal_attention(query, key, value, whole), atol=1e-6)


def test_a_layer_that_has_its_own_heads_only_shares_nothing():
    assert rank_heads_of(attention(8, 0, 2, splits_input=False), spec(4, 2)) is None
    assert rank_heads_of(nn.Module(), spec(8, 4)) is None
    assert rank_heads_of(attention(8, 0, 2), spec(4, 2)) is None


def test_heads_that_do_not_divide_stay_whole_on_every_rank():
    assert rank_heads_of(attention(10, 0, 2), spec(10, 5)) is None
    assert rank_heads_of(attention(9, 0, 2), spec(9, 3)) is None
