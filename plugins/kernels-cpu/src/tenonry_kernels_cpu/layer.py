"""The kernels of attention over blocks and of whole decoder layers, in bfloat16. Worker process."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, ClassVar

import torch

from tenonry_kernels_cpu.attention import struct_of
from tenonry_kernels_cpu.blocked import BlockedStruct, blocked_struct, prepared_bytes
from tenonry_kernels_cpu.library import ADDRESS, COUNT, REAL, function
from tenonry_kernels_cpu.weights import address
from tenonry_torch_base.low_bit import LowBitWeight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenonry_torch_base.paged_attention import Chunks, PagedKeys
    from tenonry_torch_base.step_kernels import AttentionParts, BlockedWeight, LayerParts

MAX_SIZE = 256  # of a head, as in native/paged.h
MAX_SHARING = 16  # as in native/layer.h
BLOCK = 64  # as in native/blocked.h
LINE_BYTES = 64


class _Paged(ctypes.Structure):
    """`paged` in native/paged.h."""

    _fields_ = (
        ("blocks", ADDRESS),
        ("is_rounded", COUNT),
        ("block_size", COUNT),
        ("kv_heads", COUNT),
        ("table", ADDRESS),
        ("width", COUNT),
        ("length", ADDRESS),
        ("window", COUNT),
        ("is_dependent", COUNT),
    )


class _Struct(ctypes.Structure):
    """`layer` in native/layer.h."""

    _fields_ = (
        *((name, COUNT) for name in ("hidden", "inner")),
        *((name, ADDRESS) for name in ("attention", "norm", "second_norm")),
        *((name, REAL) for name in ("norm_eps", "second_norm_eps")),
        *((name, BlockedStruct) for name in ("projection", "out", "gate_up", "down")),
    )


def can_attend(parts: AttentionParts) -> bool:
    """Return True if heads are small enough, and nothing is gated."""
    is_small = parts.size <= MAX_SIZE and parts.heads <= MAX_SHARING * parts.kv_heads
    return is_small and not parts.is_gated


def can_multiply(weight: BlockedWeight | LowBitWeight) -> bool:
    """Return True if inputs come in pairs, or in their stored order."""
    if isinstance(weight, LowBitWeight):
        return weight.order is None
    return weight.inputs % 2 == 0


def can_compute(parts: LayerParts) -> bool:
    """Return True if a kernel supports the shapes of a layer: blocks of gates match blocks of ups."""
    weights = (parts.projection, parts.out, parts.gate_up, parts.down)
    fits = can_attend(parts.attention) and all(map(can_multiply, weights))
    return fits and parts.down.inputs % BLOCK == 0


def place_of(keys: PagedKeys, window: int) -> ctypes.Structure:
    """`paged` in native/paged.h."""
    return _Paged(
        keys.blocks.data_ptr(),
        keys.blocks.dtype == torch.uint8,
        keys.blocks.shape[2],
        keys.blocks.shape[1] // 2,
        keys.table.data_ptr(),
        keys.table.shape[1],
        keys.lengths.data_ptr(),
        window,
        keys.is_dependent,
    )


class _OverBlocks:
    """Attention alone: a kernel made from its parts."""

    kernel: ClassVar[str]
    __slots__ = ("_address", "_function", "_held", "_threads", "_window")

    def __init__(self, parts: AttentionParts, instruction_set: str, threads: int) -> None:
        made = struct_of(parts)
        self._held = (parts, made)
        self._address = ctypes.addressof(made)
        self._window = parts.window
        self._threads = threads
        self._function = function(self.kernel, instruction_set)


class PagedAttention(_OverBlocks):
    """See `PagedAttentionParts`."""

    kernel = "paged_attention"
    __slots__ = ()

    def __call__(self, query: torch.Tensor, keys: PagedKeys) -> torch.Tensor:
        out = query.new_empty(query.shape)
        place = place_of(keys, self._window)
        self._function(
            self._address,
            self._threads,
            len(query),
            query.data_ptr(),
            query.shape[1] * query.shape[2],
            ctypes.addressof(place),
            out.data_ptr(),
        )
        return out


class ChunkAttention(_OverBlocks):
    """See `ChunkAttentionParts`."""

    kernel = "chunk_attention"
    __slots__ = ()

    def __call__(
        self, query: torch.Tensor, chunks: Chunks, keys: PagedKeys, out: torch.Tensor
    ) -> None:
        place = place_of(keys, self._window)
        self._function(
            self._address,
            self._threads,
            len(chunks.counts),
            chunks.begins.data_ptr(),
            chunks.counts.data_ptr(),
            query.data_ptr(),
            ctypes.addressof(place),
            out.data_ptr(),
        )


class Layer:
    """See `LayerParts`. `row_bytes`: of its scratch, for each row; `size`: of a head."""

    writes_first: ClassVar[bool] = True
    __slots__ = (
        "_function",
        "_held",
        "_room",
        "_scratch",
        "_threads",
        "address",
        "row_bytes",
        "size",
        "window",
    )

    def __init__(self, parts: LayerParts, instruction_set: str, threads: int) -> None:
        hidden = parts.out.outputs
        inner = parts.down.inputs
        weights = (parts.projection, parts.out, parts.gate_up, parts.down)
        structs = [blocked_struct(weight) for weight in weights]
        attention = struct_of(parts.attention)
        made = _Struct(
            hidden,
            inner,
            ctypes.addressof(attention),
            address(parts.norm_weight),
            address(parts.second_norm_weight),
            parts.norm_eps,
            parts.second_norm_eps,
            *structs,
        )
        self._held = (parts, attention, made)
        self.address = ctypes.addressof(made)
        self.size = parts.attention.size
        self.window = parts.attention.window
        self._threads = threads
        self._function = function("layer", instruction_set)
        prepared = max(prepared_bytes(struct, instruction_set) for struct in structs)
        self.row_bytes = prepared + 4 * parts.projection.outputs
        self.row_bytes += 2 * (2 * hidden + parts.out.inputs + inner)
        self._room = 0
        self._scratch = torch.empty(0)

    def __call__(
        self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, keys: PagedKeys
    ) -> torch.Tensor:
        count = len(hidden)
        if count > self._room:
            self._scratch = torch.empty(count * self.row_bytes, dtype=torch.uint8)
            self._room = count
        out = torch.empty_like(hidden)
        place = place_of(keys, self.window)
        self._function(
            self.address,
            self._threads,
            count,
            hidden.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            cos.shape[-1],
            ctypes.addressof(place),
            out.data_ptr(),
            self._scratch.data_ptr(),
        )
        return out


class Stack:
    """See `StackParts`."""

    writes_first: ClassVar[bool] = True
    __slots__ = (
        "_blocks",
        "_function",
        "_held",
        "_parts",
        "_room",
        "_row_bytes",
        "_scratch",
        "_threads",
        "_windows",
    )

    def __init__(self, layers: Sequence[Layer], instruction_set: str, threads: int) -> None:
        count = len(layers)
        self._held = list(layers)
        self._parts = (ADDRESS * count)(*(layer.address for layer in layers))
        self._windows = (COUNT * count)(*(layer.window for layer in layers))
        self._blocks = (ADDRESS * count)()
        self._threads = threads
        self._function = function("stack", instruction_set)
        self._row_bytes = max(layer.row_bytes for layer in layers)
        self._room = 0
        self._scratch = torch.empty(0)

    def __call__(
        self,
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        keys: PagedKeys,
        blocks: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        count = len(hidden)
        if count > self._room:
            between = 2 * hidden.shape[1] * count + LINE_BYTES
            self._scratch = torch.empty(between + count * self._row_bytes, dtype=torch.uint8)
            self._room = count
        self._blocks[:] = [each.data_ptr() for each in blocks]
        out = torch.empty_like(hidden)
        place = place_of(keys, 0)
        self._function(
            ctypes.addressof(self._parts),
            len(self._held),
            self._threads,
            count,
            hidden.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            cos.shape[-1],
            ctypes.addressof(place),
            ctypes.addressof(self._blocks),
            ctypes.addressof(self._windows),
            out.data_ptr(),
            self._scratch.data_ptr(),
        )
        return out
