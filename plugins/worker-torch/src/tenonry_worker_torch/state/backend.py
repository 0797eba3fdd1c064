"""The attention backend of a model that also has layers with state: both are planned together. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from tenonry_torch_base.attention.base import AttentionBackend

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from tenonry_torch_base.attention.base import AttentionBatch, CachedLayer, LayerCache
    from tenonry_torch_base.attention.kv_storage import KVStorage
    from tenonry_torch_base.paged_attention import PagedKeys
    from tenonry_torch_base.step_kernels import HeldKeys
    from tenonry_worker_torch.state.states import States


class NoAttention(AttentionBackend):
    """Backend for a model of layers with state alone."""

    name: ClassVar[str] = "none"

    def allocate(self, num_blocks: int, block_size: int) -> dict[str, LayerCache]:
        return {}

    def plan(self, batch: AttentionBatch) -> AttentionBatch:
        return batch

    def forward(
        self,
        layer: CachedLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        plan: Any,
        both: torch.Tensor | None = None,
    ) -> torch.Tensor:
        raise RuntimeError(
            f"{layer.spec.name} attends, but the model was found to have no attention"
        )


class StatefulBackend(AttentionBackend):
    """Delegates to the backend of the attention layers, and passes each step to the layers with state."""

    name: ClassVar[str] = "state"

    def __init__(self, attention: AttentionBackend, states: States) -> None:
        super().__init__(attention.layers, attention.dtype, attention.device)
        self.attention = attention
        self.num_groups = attention.num_groups
        self.states = states
        self.cache_sizes = attention.cache_sizes
        self.holds_rows = attention.holds_rows

    def keep_in(self, storage: KVStorage) -> None:
        super().keep_in(storage)
        self.attention.keep_in(storage)

    def block_sizes(self) -> tuple[int, ...]:  # type: ignore[override] - those of this attention
        return self.attention.block_sizes()

    def allocate(self, num_blocks: int, block_size: int) -> dict[str, LayerCache]:
        self.states.release()
        return self.attention.allocate(num_blocks, block_size)

    def plan(self, batch: AttentionBatch) -> Any:
        if batch.full_plan is None:  # all layers with state see the whole step, also the last one
            self.states.plan(batch)
        return self.attention.plan(batch)

    def release(self, rows: NDArray[np.int32]) -> None:
        self.attention.release(rows)

    def forward(
        self,
        layer: CachedLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        plan: Any,
        both: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return self.attention.forward(layer, query, key, value, plan, both)

    def held_keys(self, layer: CachedLayer, plan: Any) -> HeldKeys | None:
        return self.attention.held_keys(layer, plan)

    def paged_keys(self, layer: CachedLayer, plan: Any) -> PagedKeys | None:
        return self.attention.paged_keys(layer, plan)
