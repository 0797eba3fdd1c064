"""Memory available to a model on this machine. Process of the command line."""

from __future__ import annotations

from tenonry.config import EngineConfig
from tenonry.kv_cache import MemoryReport


def free_memory(config: EngineConfig, given: int | None = None) -> MemoryReport:
    """Bytes for the weights and the KV cache of one rank, on the device of the settings.

    `given`: free bytes, instead of this machine's. On CUDA the share `gpu_memory_utilization` is applied.
    """
    from tenonry_torch_base.device import choose_device
    from tenonry_torch_base.memory import free_device_memory, host_memory

    device = choose_device(config.device)
    is_host = device.type == "cpu"
    if given is not None:
        share = given if is_host else int(given * config.gpu_memory_utilization)
        return MemoryReport(share, is_host=is_host)
    if is_host:  # the ranks of a node share it
        return MemoryReport(host_memory() // config.world_size, is_host=True)
    return MemoryReport(free_device_memory(device, config.gpu_memory_utilization, 0))
