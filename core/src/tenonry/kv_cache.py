"""KV cache groups, and the layout of their cache, decided by `tenonry.engine.kv_plan`. Every process.

A *group* is a set of layers whose blocks are allocated together. A *block* holds `block_size` slots, one per token. A
*state slot* holds a snapshot: the state that the recurrent layers had after some number of one sequence's tokens.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Literal

import msgspec


class LengthClasses(msgspec.Struct, frozen=True):
    """Dependence of K on the sequence length, for models whose rotary tables depend on it.

    Prompts of at most `original` tokens are of one class, longer ones of another: prefixes are shared within a class
    only. `grows`: longer prompts of different lengths are of different classes. `restarts`: a request's class is that
    of all its tokens, and one that started with at most `original` must be preempted before it computes a later one.
    """

    original: int
    grows: bool = False
    restarts: bool = False


class KVCacheGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that share one block table. Groups with blocks share one pool: an id names one block of one of them.

    `kind`: "full" and "sliding" attention keep K and V of each token, in blocks. "recurrent" layers keep one state per
    sequence, which each token changes; their table holds state slots. "opaque": the worker stores whole sequences in
    its own way and shares no prefix; block ids merely count the tokens that fit. Blocks of a "sliding" group wholly
    before the window of a row's next token are released.

    `bytes_per_token`: K and V of one token over all layers of the group. `state_bytes`: the state of one sequence over
    all layers. `block_sizes`: supported by the attention backend, best first; empty means any. `window`: the sliding
    window in tokens, 0 for none. `lengths`: None where K of equal tokens are equal.
    """

    layers: tuple[str, ...]
    kind: Literal["full", "sliding", "recurrent", "opaque"] = "full"
    bytes_per_token: int = 0
    state_bytes: int = 0
    block_sizes: tuple[int, ...] = ()
    window: int = 0
    lengths: LengthClasses | None = None


class MemoryReport(msgspec.Struct, frozen=True):
    """Bytes a rank can give to its KV cache; `is_host`: CPU memory, which other processes use too."""

    free_bytes: int
    is_host: bool = False


class KVCacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Cache layout, equal on all ranks: `num_blocks` of all groups, `block_size` and `max_model_len` in tokens.

    `groups` are those of rank 0; another rank knows its own layers. `num_state_slots`: snapshots that a recurrent group
    can hold, besides the state of each row; 0: a prefix of a model with such layers is never shared.
    """

    num_blocks: int
    block_size: int
    groups: tuple[KVCacheGroup, ...]
    max_model_len: int = 1
    num_state_slots: int = 0

    @property
    def num_slots(self) -> int:
        return self.num_blocks * self.block_size


# ---------------------------------------------------------------- pages
# KV groups with blocks share one pool: a *page* is a block that belongs to one group at a time. A "sliding" group holds
# the pages that its window still reaches, and those of the tokens that a step computes; all others are given back.
def paged(groups: Sequence[KVCacheGroup]) -> list[KVCacheGroup]:
    """Groups with blocks; those of kind "recurrent" have none."""
    return [group for group in groups if group.kind != "recurrent"]


def window_blocks(window: int, block_size: int, chunk: int) -> int:
    """Maximum blocks touched by `chunk` tokens and the `window` − 1 before them."""
    return (window + chunk - 3) // block_size + 2


def sequence_pages(
    groups: Sequence[KVCacheGroup], num_tokens: int, block_size: int, chunk: int
) -> int:
    """Maximum pages of a sequence of `num_tokens`, when a step computes at most `chunk` tokens of it."""
    blocks = -(-num_tokens // block_size)
    total = 0
    for group in paged(groups):
        held = blocks
        if group.kind == "sliding" and group.window:
            held = min(blocks, window_blocks(group.window, block_size, chunk))
        total += held
    return total or blocks  # layers with state alone: blocks are counted nevertheless


def longest_sequence(
    groups: Sequence[KVCacheGroup], num_pages: int, block_size: int, chunk: int, most: int
) -> int:
    """Longest sequence, up to `most` tokens, with at most `num_pages` pages."""
    fits = bisect.bisect_right(
        range(1, -(-most // block_size) + 1),
        num_pages,
        key=lambda blocks: sequence_pages(groups, blocks * block_size, block_size, chunk),
    )
    return min(fits * block_size, most)
