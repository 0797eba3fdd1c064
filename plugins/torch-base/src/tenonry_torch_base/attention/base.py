"""Interface of attention backends, and its inputs. Worker process; the extension point `tenonry.attention_backends`.

A backend owns the layout of the KV cache and everything that is computed once per step from the block tables. The model
runner calls `plan` once per step and `forward` once per layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from tenonry_torch_base.attention.kv_storage import Floats

if TYPE_CHECKING:
    from tenonry_torch_base.attention.kv_storage import KVStorage
    from tenonry_torch_base.invariant import StepKeys
    from tenonry_torch_base.paged_attention import PagedKeys
    from tenonry_torch_base.step_kernels import HeldKeys


@dataclass(slots=True, kw_only=True)
class LayerSpec:
    """Shape and mathematics of one attention layer, as the model itself passed them in a probe run.

    `key_size` and `value_size` are elements per head. `window`: number of positions visible to a query, its own
    included (0: all); `softcap` bounds the scores with `softcap * tanh(score / softcap)` (0: unbounded).

    Features that a backend must support to attend correctly, and declares in `AttentionBackend.features`: `chunk` is
    the number of positions of a chunk, whose start bounds the view of its queries (0: no chunks; Llama 4). With
    `sinks`, each head has a logit used only in the softmax (gpt-oss), `CachedLayer.sinks`. An `indexed` layer attends
    only to positions chosen by its model, `CachedLayer.chosen` (DeepSeek V3.2); the indexer's keys form a separate
    layer, with values of size 0. With `spans`, a query may attend to later keys, up to `AttentionBatch.last_seen` (the
    tokens of an image in Gemma 3).
    """

    name: str
    index: int
    num_heads: int
    num_kv_heads: int
    key_size: int
    value_size: int
    scaling: float
    window: int = 0
    softcap: float = 0.0
    chunk: int = 0
    sinks: bool = False
    indexed: bool = False
    spans: bool = False

    def first_seen(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first position that the last token of rows of `lengths` tokens sees."""
        if self.window:
            return np.maximum(lengths - self.window, 0)
        if self.chunk:
            return (lengths - 1) // self.chunk * self.chunk
        return np.zeros_like(lengths)

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        """K and V of one token."""
        return self.num_kv_heads * (self.key_size + self.value_size) * dtype.itemsize

    def kept_bytes(self, storage: KVStorage) -> int:
        """Bytes of K and V of one token in storage."""
        key_bytes = storage.vector_bytes(self.key_size)
        return self.num_kv_heads * (key_bytes + storage.vector_bytes(self.value_size))


class LayerCache:
    """The K and V tensors of one layer, in the layout that the backend chose, as its storage keeps them.

    `both` is the tensor that holds both, if a backend stores them so; `key` and `value` are its parts.
    """

    __slots__ = ("both", "key", "value")

    def __init__(
        self, key: torch.Tensor, value: torch.Tensor, both: torch.Tensor | None = None
    ) -> None:
        self.key = key
        self.value = value
        self.both = both


class CachedLayer(Protocol):
    """An attention layer as read by a backend."""

    @property
    def spec(self) -> LayerSpec: ...

    @property
    def kv_cache(self) -> Sequence[LayerCache]:
        """One cache, once `bind_kv_cache` has run."""
        ...

    @property
    def sinks(self) -> torch.Tensor | None:
        """A logit per query head [num_heads], if the spec has `sinks`."""
        ...

    @property
    def chosen(self) -> torch.Tensor | None:
        """Positions in its row visible to each query of the step, i64[T, K], if the spec is `indexed`; −1 for none."""
        ...


class GroupTable(NamedTuple):
    """Location of the K/V of one group of layers: fields as in `AttentionBatch`."""

    block_table: NDArray[np.int32]
    slot_mapping: NDArray[np.int64]


@dataclass(slots=True, kw_only=True)
class AttentionBatch:
    """The rows of one step from the view of a backend: R rows, Q query tokens, T written tokens.

    All arrays are numpy and on the host: `row` i32[R], `num_tokens` i32[R] (query tokens per row, neighbours in the
    flattened batch), `start` i32[R] (position of a row's first query), `seq_lens` i32[R] (KV length to attend to,
    queries included), `block_table` i32[rows, blocks] indexed by `row`, `slot_mapping` i64[T] (slots of the step's
    K/V). `generation` i64[R] changes whenever a row is filled anew. `put(label, array)` moves an array to the device.

    For the last layer of a model the queries are only those that are sampled from, while all T tokens are still
    written: then every row has one query token, and `full_plan` is the plan of the other layers.

    `groups`: the tables of each group of layers, if there are several; `block_table` is that of the first.

    `last_seen` i64[Q]: the last position visible to each query, its own or a later one of the same step; None if it is
    its own for all. A window limits the positions before a query, not those after it.

    `is_dependent`: each row has one token, and rows may be tokens of one sequence that follow each other (see
    `AttentionBackend.splits_rows`).
    """

    row: NDArray[np.int32]
    num_tokens: NDArray[np.int32]
    start: NDArray[np.int32]
    seq_lens: NDArray[np.int32]
    block_table: NDArray[np.int32]
    slot_mapping: NDArray[np.int64]
    generation: NDArray[np.int64]
    put: Callable[[str, NDArray[Any]], torch.Tensor]
    full_plan: Any = None
    groups: tuple[GroupTable, ...] = ()
    last_seen: NDArray[np.int64] | None = None
    is_dependent: bool = False


class DecodeRows(NamedTuple):
    """R rows that decode, in tensors that later steps rewrite: `table` i32[R, blocks], `lengths` i32[R] with their new
    tokens, `slots` i64[R] of those. A row's query is at its own place in the step.
    """

    table: torch.Tensor
    lengths: torch.Tensor
    slots: torch.Tensor


# Fields of a LayerSpec that change the result and that early backends do not support.
FEATURES = {
    "chunk": "attention within chunks",
    "sinks": "attention sinks",
    "indexed": "a choice of keys per query",
    "spans": "queries that see later keys",
}
# A feature of no layer: the backend shares tensors of other layers (`adopt`), and reads no place of
# a block table wholly before the windows of its layers, since its block was released.
GROUPS = "groups"
# Another one: the backend reads and writes K/V with any `storage`.
STORAGE = "storage"


def refusal_of(
    backend: type[AttentionBackend],
    layers: Sequence[LayerSpec],
    dtype: torch.dtype,
    device: torch.device,
    storage: type[KVStorage] = Floats,
) -> str | None:
    """Reason why a backend cannot run these layers: a feature that it does not declare, or its own refusal."""
    known = vars(backend).get("features", frozenset())
    if reason := _refusal_of_storage(known, layers, storage):
        return f"kv_cache_dtype={storage.name}: {reason}; leave --kv-cache-dtype out"
    for layer in layers:
        for field, meaning in FEATURES.items():
            if getattr(layer, field) and field not in known:
                return f"layer {layer.name} needs {meaning}, which it does not know; use another"
    return backend.refusal(layers, dtype, device)


def _refusal_of_storage(
    known: frozenset[str], layers: Sequence[LayerSpec], storage: type[KVStorage]
) -> str | None:
    """Reason why a backend with these features cannot use the storage for the K and V of these layers."""
    if storage.tolerance == 0:
        return None
    if not layers:
        return "there is no attention here, and so no K and V"
    if STORAGE not in known:
        return "it keeps K and V in the type of the model only"
    for layer in layers:
        if layer.indexed:
            return f"layer {layer.name} sees keys that others choose, which are not kept in 8 bits"
    return None


class AttentionBackend(ABC):
    """Writes K/V into blocks and attends to them.

    A slot that the row has not written may hold values of the block's last owner, NaN included, and masking does not
    exclude a NaN: zero times NaN is NaN. No such slot must reach the arithmetic.

    Order of calls: `refusal` (before anything is built), constructor, `allocate` once, then per step `plan` once and
    `forward` once per layer. `block_sizes` lists the supported sizes, best first; empty means any.

    `features`: the supported ones of `FEATURES`, `GROUPS` and `STORAGE`. Layers that need another are rejected before
    `refusal` is called. A subclass does not inherit them: one that reads K/V differently declares its own.

    `cache_sizes`: the self check at start runs once with each, as many times as large as its prompts need. A backend
    whose algorithm depends on the size lists a size for each algorithm.
    """

    name: ClassVar[str]
    interface_version: ClassVar[int] = 1
    features: ClassVar[frozenset[str]] = frozenset()
    cache_sizes: tuple[int, ...] = (1,)
    num_groups: int = 1  # block tables that it plans with
    num_sharing: int = 1  # backends that share its tensors, itself included
    holds_rows: bool = False  # True if `held_keys` may find any
    splits_rows: bool = (
        False  # True if tokens of one row may be dependent rows, at the speed of decoding rows
    )

    @classmethod
    def refusal(
        cls, layers: Sequence[LayerSpec], dtype: torch.dtype, device: torch.device
    ) -> str | None:
        """Return the reason why this backend cannot run these layers on this device; None if it can."""
        return None

    @classmethod
    def block_sizes(cls) -> tuple[int, ...]:
        """Block sizes it can do, best first; empty for any."""
        return ()

    def __init__(
        self, layers: Sequence[LayerSpec], dtype: torch.dtype, device: torch.device
    ) -> None:
        self.layers = tuple(layers)
        self.dtype = dtype
        self.device = device
        self.storage: KVStorage = Floats(dtype)

    def keep_in(self, storage: KVStorage) -> None:
        """Set the storage from the next `allocate` on. Only called if `features` contain `STORAGE`."""
        self.storage = storage

    @abstractmethod
    def allocate(self, num_blocks: int, block_size: int) -> dict[str, LayerCache]:
        """Allocate the cache; one entry per layer, by its name."""

    def adopt(self, other: Any, caches: Sequence[LayerCache]) -> dict[str, LayerCache]:
        """Instead of `allocate`, for a backend that supports `GROUPS`: this one's layer i uses `caches[i]`.

        `other`, of the same class, has allocated them; its layers have the same shapes, and are at least as many.
        """
        raise NotImplementedError(f"attention backend '{self.name}' cannot share its tensors")

    @abstractmethod
    def plan(self, batch: AttentionBatch) -> Any:
        """Everything `forward` needs that is the same for all layers of the step."""

    def decode_plan(self, rows: DecodeRows) -> Any | None:
        """Plan decode-only steps with launches independent of tensor values, so that a graph may replay them; None if
        unsupported. Called after `allocate`.
        """
        return None

    def release(self, rows: NDArray[np.int32]) -> None:  # noqa: B027 - few backends keep anything by row
        """Drop the backend's state of rows that are gone."""

    @abstractmethod
    def forward(
        self,
        layer: CachedLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        plan: Any,
        both: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write `key` and `value` [T, num_kv_heads, size] of the whole step, then attend with `query`
        [Q, num_heads, key_size]; returns [Q, num_heads, value_size]. Nothing is read before everything is written.

        `both` [T, 2 × num_kv_heads, size] is key and value as one tensor, where the caller has them so.
        """

    def held_keys(self, layer: CachedLayer, plan: Any) -> HeldKeys | None:
        """Location of K/V for kernels that write and attend in one call, if in this step all rows decode and are held
        so.

        The caller then writes the new token of each row there, instead of `forward`.
        """
        return None

    def paged_keys(self, layer: CachedLayer, plan: Any) -> PagedKeys | None:
        """As `held_keys`, for rows whose keys are read from their blocks."""
        return None

    def step_keys(self, layer: CachedLayer, plan: Any) -> StepKeys | None:
        """As `held_keys`, for any tokens of a step, whose keys are read from their blocks."""
        return None
