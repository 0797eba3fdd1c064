"""The KV cache of a runner: allocated, bound to the layers of its model, released. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenonry_worker_torch.kv_binding import bind_kv_cache

if TYPE_CHECKING:
    from tenonry_torch_base.attention.base import LayerCache
    from tenonry_worker_torch.loaded_model import LoadedModel


class KVMemory:
    """`kv_caches` of all layers by index; empty between `release` and `allocate`."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.kv_caches: list[LayerCache] = []
        self._num_blocks = num_blocks
        self._block_size = block_size

    def allocate(self, model: LoadedModel) -> None:
        """Allocate one block more than the pool, for steps without requests."""
        caches = model.backend.allocate(self._num_blocks + 1, self._block_size)
        bind_kv_cache(caches, model.layers, self.kv_caches)

    def release(self, model: LoadedModel) -> None:
        """Drop all references to the tensors."""
        self.kv_caches.clear()
        model.step.plan = None  # the last one may hold the cache of a layer
        for layer in model.layers.values():
            layer.kv_cache = []
        model.backend.allocate(1, self._block_size)  # it holds its last allocation
