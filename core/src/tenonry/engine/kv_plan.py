"""Computes the number of blocks from free memory. Pure; runs in the engine, and before weights are read.

The same plan holds on all ranks, so the rank with the least memory for its layers decides.
"""

from __future__ import annotations

from collections.abc import Sequence

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError
from tenonry.kv_cache import (
    KVCacheConfig,
    KVCacheGroup,
    MemoryReport,
    longest_sequence,
    paged,
    sequence_pages,
)

CPU_POOL_BYTES = 4 << 30
DEFAULT_BLOCK_SIZE = 16
SNAPSHOT_SHARE = 8  # default fraction of the pool for snapshots: 1/8,
SNAPSHOTS_PER_ROW = 4  # and their maximum number per running sequence

RankGroups = Sequence[Sequence[KVCacheGroup]]  # as reported by the worker of each rank


def plan_kv_cache(
    groups: RankGroups, memory: Sequence[MemoryReport], config: EngineConfig, max_model_len: int
) -> KVCacheConfig:
    """Size the KV cache in blocks: the minimum over all ranks.

    `groups` and `memory` hold one entry per rank. The groups of all ranks must be alike in number, kind and window;
    their layers and bytes may differ (a rank without a layer of a kind reports that group empty). A block has the size
    of the largest group's. On the CPU the default pool is the minimum of 4 GiB, a quarter of the free memory, and the
    maximum usable by `max_num_seqs` sequences of `max_model_len`. The states of `max_num_seqs` sequences are taken from
    the free memory first, snapshots from the pool. Raises ConfigError when ranks disagree, when the states do not fit,
    or not even one block does.
    """
    _check_alike(groups, memory)
    block_size = choose_block_size([group for rank in groups for group in rank], config.block_size)
    state_bytes = [sum(group.state_bytes for group in rank) for rank in groups]
    pools = [
        _pool_of_rank(per_row, report, config)
        for per_row, report in zip(state_bytes, memory, strict=True)
    ]
    state_slots = 0
    if any(group.kind == "recurrent" for group in groups[0]):
        state_slots = _count_state_slots(max(state_bytes), min(pools), config)
    left = [pool - state_slots * per_row for pool, per_row in zip(pools, state_bytes, strict=True)]
    pages = (block_size, config.step_token_budget)
    most_useful = config.max_num_seqs * sequence_pages(groups[0], max_model_len, *pages)
    blocks = _count_blocks(groups, memory, left, config, block_size, most_useful)
    wanted = config.max_model_len
    longest = longest_sequence(groups[0], blocks, *pages, max(wanted or 0, max_model_len))
    return KVCacheConfig(
        num_blocks=blocks,
        block_size=block_size,
        groups=tuple(groups[0]),
        max_model_len=fit_model_len(longest, wanted, max_model_len),
        num_state_slots=state_slots,
    )


def choose_block_size(groups: Sequence[KVCacheGroup], wanted: int | None) -> int:
    """Return the configured block size if every group supports it, else the first supported by all.

    Raises ConfigError without one, listing the sizes of each group.
    """
    offers = [list(group.block_sizes) for group in groups if group.block_sizes]
    if not offers:
        return wanted or DEFAULT_BLOCK_SIZE
    allowed = [size for size in offers[0] if all(size in offer for offer in offers)]
    if not allowed:
        text = ", ".join(map(str, offers))
        raise ConfigError(
            f"the KV groups have no block size in common ({text}); use another attention backend"
        )
    if wanted and wanted not in allowed:
        raise ConfigError(
            f"block_size={wanted} is not possible with this attention backend; it can do {allowed}"
        )
    return wanted or allowed[0]


def fit_model_len(longest: int, wanted: int | None, default: int) -> int:
    """Return the longest sequence, in tokens, that both model and pool allow; `longest` is the pool's limit.

    Raises ConfigError for a configured length above the pool's limit; the model's own length is reduced.
    """
    if wanted is not None and wanted > longest:
        raise ConfigError(
            f"max_model_len={wanted} does not fit: the KV cache holds {longest} tokens; lower max_model_len to "
            f"{longest}, or raise gpu_memory_utilization, kv_cache_memory_bytes or num_gpu_blocks_override"
        )
    return min(default, longest)


def _check_alike(groups: RankGroups, memory: Sequence[MemoryReport]) -> None:
    """Raise ConfigError unless every rank reported its memory, and groups like those of rank 0."""
    if not groups or len(groups) != len(memory):
        raise ConfigError(
            f"{len(groups)} ranks reported KV groups, {len(memory)} reported memory; both must agree"
        )
    shapes = [[(group.kind, group.window) for group in rank] for rank in groups]
    for number, shape in enumerate(shapes):  # layers may differ: a pipeline stage has its own
        if shape != shapes[0]:
            raise ConfigError(
                f"rank {number} reports KV groups (kind, window) {shape}, rank 0 reports {shapes[0]}; all must agree"
            )


def _pool_of_rank(per_row: int, report: MemoryReport, config: EngineConfig) -> int:
    """Bytes for blocks and snapshots. `per_row`: state bytes per sequence. Raises ConfigError when these do not fit."""
    free = report.free_bytes - config.max_num_seqs * per_row
    if free < 0:
        raise ConfigError(
            f"max_num_seqs={config.max_num_seqs} does not fit: the state of one sequence needs {per_row} bytes and "
            f"{report.free_bytes} are free; lower --max-num-seqs, to at most {report.free_bytes // per_row}"
        )
    if config.kv_cache_memory_bytes is not None:
        return config.kv_cache_memory_bytes
    return min(CPU_POOL_BYTES, free // 4) if report.is_host else free


def _count_state_slots(size: int, pool: int, config: EngineConfig) -> int:
    """Number of snapshots. `size`: bytes of one, 0 without recurrent layers here. Raises ConfigError when the budget
    holds none, or exceeds the pool.
    """
    budget = config.state_cache_memory_bytes
    if not (size and config.enable_prefix_caching) or budget == 0:
        return 0
    if budget is None:
        return min(pool // SNAPSHOT_SHARE // size, SNAPSHOTS_PER_ROW * config.max_num_seqs)
    if not size <= budget <= pool:
        raise ConfigError(
            f"state_cache_memory_bytes={budget} is not between {size}, one snapshot, and {pool}, the KV cache; 0: none"
        )
    return budget // size


def _count_blocks(
    groups: RankGroups,
    memory: Sequence[MemoryReport],
    pools: Sequence[int],
    config: EngineConfig,
    block_size: int,
    most_useful: int,
) -> int:
    """Blocks that every rank can hold in its pool (bytes), at least one per group. Raises ConfigError otherwise.

    `most_useful`: maximum usable by all sequences, the default limit in memory shared with other processes.
    """
    sizes = [
        block_size * max((group.bytes_per_token for group in rank), default=0) for rank in groups
    ]
    least = max(1, len(paged(groups[0])))
    blocks = config.num_gpu_blocks_override or min(
        pool // size if size else most_useful  # 0: no layer keeps K and V of each token
        for size, pool in zip(sizes, pools, strict=True)
    )
    is_shared = any(report.is_host for report in memory)
    if is_shared and not (config.num_gpu_blocks_override or config.kv_cache_memory_bytes):
        blocks = min(blocks, most_useful)
    if blocks < least:
        need = f"one block of {block_size} tokens needs {least * max(sizes)}"
        if config.num_gpu_blocks_override:
            raise ConfigError(
                f"num_gpu_blocks_override={blocks} is too small: use at least {least}"
            )
        if config.kv_cache_memory_bytes is not None:
            raise ConfigError(
                f"kv_cache_memory_bytes={config.kv_cache_memory_bytes} is too small: {need}"
            )
        raise ConfigError(
            f"no memory for the KV cache: {min(report.free_bytes for report in memory)} bytes are free, {need}; use a "
            "smaller model or a higher --gpu-memory-utilization"
        )
    return blocks
