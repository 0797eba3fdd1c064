"""The KV groups of a model's layers, as the kernel plans with them. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenonry.kv_cache import KVCacheGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from tenonry_worker_torch.attention.base import AttentionBackend, LayerSpec


def kv_groups(
    specs: Sequence[LayerSpec],
    dtype: torch.dtype,
    backend: type[AttentionBackend],
) -> list[KVCacheGroup]:
    """The groups of layers with these specs, whose K/V are kept in `dtype` by a backend of that class.

    `Worker.examine` asks for those of the whole model, `Worker.kv_cache_groups` for those of this rank.
    """
    return [
        KVCacheGroup(
            layers=tuple(spec.name for spec in specs),
            bytes_per_token=sum(spec.bytes_per_token(dtype) for spec in specs),
            block_sizes=backend.block_sizes(),
        )
    ]
