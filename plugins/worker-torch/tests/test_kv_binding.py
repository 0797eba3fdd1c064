"""Row BF-5: KV tensors bound to layers."""

from __future__ import annotations

import pytest
import torch

from tenonry.errors import Unsupported
from tenonry_torch_base.attention.base import LayerCache, LayerSpec
from tenonry_torch_base.attention.layer import AttentionLayer
from tenonry_worker_torch.kv_binding import bind_kv_cache


def layer(name, index):
    return AttentionLayer(
        LayerSpec(
            name=name,
            index=index,
            num_heads=1,
            num_kv_heads=1,
            key_size=4,
            value_size=4,
            scaling=1.0,
        ),
        None,
    )


def cache():
    return LayerCache(torch.zeros(1), torch.zeros(1))


def test_the_runners_list_is_filled_in_the_order_of_layer_indices():
    layers = {"b": layer("b", 10), "a": layer("a", 2), "c": layer("c", 0)}
    caches = {name: cache() for name in layers}
    runner = []
    bind_kv_cache(caches, layers, runner)
    assert runner == [caches["c"], caches["a"], caches["b"]]
    assert all(layers[name].kv_cache == [caches[name]] for name in layers)


def test_the_runners_list_must_be_empty():
    with pytest.raises(ValueError, match="already holds 1"):
        bind_kv_cache({"a": cache()}, {"a": layer("a", 0)}, [cache()])


def test_two_names_with_one_index_are_refused():
    layers = {"self": layer("self", 3), "cross": layer("cross", 3)}
    with pytest.raises(Unsupported, match="self and cross share the index 3"):
        bind_kv_cache({name: cache() for name in layers}, layers, [])


def test_every_layer_has_a_cache_and_every_cache_a_layer():
    with pytest.raises(ValueError, match="do not match: b"):
        bind_kv_cache({"a": cache(), "b": cache()}, {"a": layer("a", 0)}, [])
