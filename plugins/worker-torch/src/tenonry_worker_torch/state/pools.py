"""The states of a layer by row: one tensor [rows, …] for each. Worker process."""

from __future__ import annotations

import math
import mmap
from typing import TYPE_CHECKING

import torch

from tenonry_worker_torch.state.layer_cache import CONVOLUTION

if TYPE_CHECKING:
    from tenonry_worker_torch.state.layer_cache import StateKey, StateShape
    from tenonry_worker_torch.state.plan import Places

    Pools = dict[StateKey, torch.Tensor]


def room_for(num_rows: int, key: StateKey, shape: StateShape, device: torch.device) -> torch.Tensor:
    """Zeros [num_rows, …]. In a window [channels, width] channels are adjacent in memory, for identical operations on
    all of them.

    In main memory, a row takes pages from its first state on: most of `max_num_seqs` rows may never run.
    """
    sizes = shape.shape
    is_window = key.kind == CONVOLUTION and len(sizes) == 2
    if is_window:
        sizes = sizes[::-1]
    pool = _zeros((num_rows, *sizes), shape.dtype, device)
    return pool.transpose(1, 2) if is_window else pool


def _zeros(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """`torch.zeros` writes into every page; a fresh mapping is zero by itself."""
    num_bytes = math.prod(sizes) * dtype.itemsize
    if device.type != "cpu" or not num_bytes:
        return torch.zeros(sizes, dtype=dtype, device=device)
    pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype).view(sizes)


def held(pools: Pools, rows: Places) -> Pools:
    """Return the states of `rows`, [R, …] each: the pools' own memory where the rows are adjacent, else copies."""
    if isinstance(rows, slice):
        return {key: pool[rows] for key, pool in pools.items()}
    return {key: _copied(pool, rows) for key, pool in pools.items()}


def _copied(pool: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Laid out as in the pool."""
    if pool.is_contiguous():
        return pool.index_select(0, rows)
    chosen = pool.transpose(1, 2).index_select(0, rows)
    return chosen.transpose(1, 2)


def put_back(pools: Pools, rows: Places, states: Pools, before: Pools) -> None:
    """Store `states` as those of `rows`; `before`: result of `held`, if any, whose in-place changes are present."""
    for key, state in states.items():
        if not isinstance(rows, slice):
            pools[key].index_copy_(0, rows, state)
        elif state is not before.get(key):
            pools[key][rows] = state
