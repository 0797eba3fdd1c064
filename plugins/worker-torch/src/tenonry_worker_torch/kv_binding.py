"""Binds the allocated KV tensors to the layers that use them. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenonry.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tenonry_torch_base.attention.base import LayerCache
    from tenonry_torch_base.attention.layer import AttentionLayer


def bind_kv_cache(
    kv_caches: Mapping[str, LayerCache],
    forward_context: Mapping[str, AttentionLayer],
    runner_kv_caches: list[LayerCache],
) -> None:
    """Fill `runner_kv_caches` in layer-index order and assign each layer a one-element list with its cache.

    Names without a layer in `forward_context`, and layers without a cache, raise ValueError, as does a runner list that
    is not empty. Two names with one layer index raise Unsupported: their order would be a guess.
    """
    if runner_kv_caches:
        raise ValueError(
            f"the runner's KV list already holds {len(runner_kv_caches)} caches; bind them only once"
        )
    if kv_caches.keys() != forward_context.keys():
        odd = sorted(kv_caches.keys() ^ forward_context.keys())
        raise ValueError(f"layers and KV caches do not match: {', '.join(odd[:4])}")
    by_index: dict[int, str] = {}
    for name, layer in forward_context.items():
        other = by_index.setdefault(layer.spec.index, name)
        if other != name:
            raise Unsupported(
                f"layers {other} and {name} share the index {layer.spec.index}; each needs its own"
            )
    runner_kv_caches.extend(kv_caches[by_index[index]] for index in sorted(by_index))
    for name, layer in forward_context.items():
        layer.kv_cache = [kv_caches[name]]
