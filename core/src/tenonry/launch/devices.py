"""GPUs visible to an engine of a data-parallel instance. Front end or supervisor, before the engine starts."""

from __future__ import annotations

import os

from tenonry.config import EngineConfig
from tenonry.errors import LaunchError
from tenonry.gpus import VARIABLE, visible_devices


def device_environment(config: EngineConfig, local_rank: int) -> dict[str, str]:
    """The variables for the engine of `local_rank` on this node: GPUs [rank × ranks per engine, … + ranks per engine).

    Empty if there is nothing to distribute: one engine, which uses the first GPUs, a CPU, or no GPU. Raises LaunchError
    when there are too few.
    """
    if config.device == "cpu" or (config.data_parallel_size == 1 and local_rank == 0):
        return {}
    visible = visible_devices()
    if not visible and config.device == "auto":
        return {}
    first = local_rank * config.world_size
    last = first + config.world_size
    if last > len(visible):
        wanted = f"GPU {first}" if last == first + 1 else f"GPUs {first} to {last - 1}"
        raise LaunchError(
            f"the engine of local rank {local_rank} needs {wanted}, but this node has {len(visible)} "
            f"({VARIABLE}={os.environ.get(VARIABLE, 'unset')}); lower data_parallel_size or tensor_parallel_size"
        )
    return {VARIABLE: ",".join(visible[first:last])}


def num_places(config: EngineConfig) -> int:
    """Number of engines with GPUs on this node; 1 if there is nothing to distribute."""
    if config.device == "cpu":
        return 1
    return max(1, len(visible_devices()) // config.world_size)
