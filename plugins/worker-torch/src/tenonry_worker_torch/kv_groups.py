"""The KV groups of a model's layers, as the kernel plans with them. Worker process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tenonry.kv_cache import KVCacheGroup
from tenonry_torch_base.attention.groups import LayerGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenonry.kv_cache import LengthClasses
    from tenonry_torch_base.attention.base import AttentionBackend, LayerSpec
    from tenonry_torch_base.attention.kv_storage import KVStorage
    from tenonry_worker_torch.state.states import States


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """Number of a model's KV groups, and number of snapshots of the state group, which is the last one."""

    num_groups: int = 1
    num_state_slots: int = 0


def kv_groups(
    specs: Sequence[LayerSpec],
    storage: KVStorage,
    backend: AttentionBackend | type[AttentionBackend],
    states: States | None = None,
    groups: Sequence[LayerGroup] = (),
    lengths: LengthClasses | None = None,
) -> list[KVCacheGroup]:
    """KV groups of layers with these specs, storage and backend, and the group of state by row.

    Groups of attention come first, as in `groups` (one without entries); a model with one kind of layers has one group.
    All stages of a model have the same groups, empty if a stage has no such layer.

    `Worker.examine` reports those of the whole model, `Worker.kv_cache_groups` those of this rank.
    """
    attention = [
        KVCacheGroup(
            layers=tuple(spec.name for spec in group.layers),
            kind="sliding" if group.window else "full",
            bytes_per_token=sum(spec.kept_bytes(storage) for spec in group.layers),
            block_sizes=backend.block_sizes(),
            window=group.window,
            lengths=lengths,
        )
        for group in groups or [LayerGroup(tuple(specs))]
    ]
    if states is None:
        return attention
    state = KVCacheGroup(layers=states.names, kind="recurrent", state_bytes=states.row_bytes)
    return [state] if states.is_alone else [*attention, state]


def kept_text(specs: Sequence[LayerSpec], storage: KVStorage) -> str:
    """Log text: size of K and V of one token on this rank, and their size as floats."""
    kept = sum(spec.kept_bytes(storage) for spec in specs)
    floats = sum(spec.bytes_per_token(storage.dtype) for spec in specs)
    dtype = str(storage.dtype).removeprefix("torch.")
    return f"KV cache in {storage.name}: {kept} bytes per token in place of {floats} in {dtype}"
