"""A folder with each rank's own piece of the model (`load_format=sharded`): safetensors files under the checkpoint's
names, and a small file per rank that lists them and their layout. Worker process.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tenonry.errors import ModelError
from tenonry_torch_base.parallel.shard import FileSlice

if TYPE_CHECKING:
    from contextlib import ExitStack

    from tenonry_torch_base.parallel.groups import Parallel

SHARD_INDEX = "tenonry-rank-{rank}.json"
VERSION = 1
MAX_INDEX_BYTES = 16 << 20


class ShardIndex(msgspec.Struct, frozen=True):
    """Files of one rank: `files`, name → bytes, for rank `rank` of a layout."""

    version: int
    rank: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    files: dict[str, int]


def rank_of(parallel: Parallel) -> int:
    """The rank within the engine."""
    return parallel.link.stage * parallel.tensor.size + parallel.tensor.rank


def read_index(folder: str, rank: int) -> ShardIndex:
    """Raises ModelError when the folder holds nothing for this rank, or a part of it."""
    path = Path(folder) / SHARD_INDEX.format(rank=rank)
    try:
        if path.stat().st_size > MAX_INDEX_BYTES:
            raise ModelError(f"{path} is larger than {MAX_INDEX_BYTES} bytes")
        index = msgspec.json.decode(path.read_bytes(), type=ShardIndex)
    except OSError:
        raise ModelError(
            f"{folder} holds no weights for rank {rank}: load_format=sharded reads what save_sharded_state wrote"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: {error}; save the model again") from None
    if index.version != VERSION or index.rank != rank:
        raise ModelError(f"{path} is of version {index.version} and rank {index.rank}")
    for name, size in index.files.items():
        file = Path(folder) / name
        if "/" in name or "\\" in name or not file.is_file() or file.stat().st_size != size:
            raise ModelError(
                f"{path} names {name!r} with {size} bytes, which is not so; save the model again"
            )
    return index


def stored_pieces(folder: str, parallel: Parallel, open_files: ExitStack) -> dict[str, FileSlice]:
    """Checkpoint name → this rank's piece. Raises ModelError for another layout than the saved one."""
    from safetensors import safe_open

    index = read_index(folder, rank_of(parallel))
    saved = (index.tensor_parallel_size, index.pipeline_parallel_size)
    wanted = (parallel.tensor.size, parallel.link.num_stages)
    if saved != wanted:
        raise ModelError(
            f"{folder} was saved with tensor_parallel_size={saved[0]} and pipeline_parallel_size={saved[1]}; start "
            "with the same, or from the checkpoint"
        )
    found = {}
    for name in index.files:
        file = open_files.enter_context(safe_open(Path(folder) / name, framework="pt"))
        for key in file.keys():  # noqa: SIM118 - it is no dictionary
            found[key] = FileSlice(file.get_slice(key), None)
    return found
