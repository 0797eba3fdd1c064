"""Memory budget of the KV cache, and retention of freed memory. Worker process."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tenonry.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

CGROUP = Path("/sys/fs/cgroup")
# glibc's mallopt parameters (malloc.h), and the largest threshold it accepts on 64-bit systems.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
LARGEST_MMAP_THRESHOLD = 32 << 20
KEPT_BYTES = 1 << 30
GIB = 1 << 30
LARGEST_CONTEXT = (
    0.05  # share of a device that this process itself may hold outside of torch's allocator
)


def host_memory(cgroup: Path = CGROUP) -> int:
    """Bytes of available main memory: the machine's, or the remainder of the control group's limit."""
    import psutil

    free = int(psutil.virtual_memory().available)
    try:
        limit, used = (
            (cgroup / name).read_text("ascii").strip() for name in ("memory.max", "memory.current")
        )
    except OSError:  # no control groups, or version 1: use the machine's figure
        return free
    if limit == "max":
        return free
    left = int(limit) - int(used)
    return max(0, min(free, left))


def free_device_memory(device: torch.device, utilization: float, needed: int) -> int:
    """Bytes of a CUDA device for the KV cache: its share, less used memory and the `needed` bytes of a step.

    Raises ConfigError where other processes hold what would be enough.
    """
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    left = int(total * utilization) - (total - free) - needed
    others = total - free - torch.cuda.memory_reserved(device)
    if left <= 0 < left + others and others > total * LARGEST_CONTEXT:
        raise ConfigError(
            f"gpu_memory_utilization={utilization:g}: other processes hold {others / GIB:.1f} of the {total / GIB:.1f} "
            f"GiB of {device}, and none of this share is left for a KV cache; set --gpu-memory-utilization so that the "
            "shares of all engines on one GPU add up to less than 1, or give each a GPU with CUDA_VISIBLE_DEVICES"
        )
    return max(0, left)


@contextlib.contextmanager
def fitting(device: torch.device) -> Iterator[None]:
    """Context of a load. Raises ConfigError where a CUDA device is too small for the model."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info(device)
        own = torch.cuda.memory_reserved(device)
        others = max(0, total - free - own) / GIB
        raise ConfigError(
            f"the model does not fit into {device} of {total / GIB:.1f} GiB, of which other processes hold "
            f"{others:.1f}: {str(error).partition('. ')[0]}; use a smaller or a quantised model, --quantization int4, "
            "or more GPUs with --tensor-parallel-size"
        ) from None


def keep_freed_memory() -> bool:
    """Configure glibc to keep large freed buffers instead of returning them to the system; returns success.

    A step allocates the same megabytes again and again, and fresh pages cost more than many of the operations on them.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        libc = ctypes.CDLL("libc.so.6")
    except OSError:  # another C library, without such a switch
        return False
    return bool(
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
        and libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    )


@contextlib.contextmanager
def skipping_old_objects() -> Iterator[None]:
    """Context whose garbage collections skip the objects that exist at its start, such as those of loaded modules.

    In a process with frozen objects these are frozen already, and others remain unchanged.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def is_frozen(thing: object) -> bool:
    """Return True if garbage collections skip `thing`: objects were frozen after it was made."""
    return not any(each is thing for each in gc.get_objects())


def return_freed_memory(*, skip_frozen: bool = False) -> None:
    """Return freed memory to the system, also that of `keep_freed_memory`, after a garbage collection.

    `skip_frozen`: exclude frozen objects, half a million after the import of torch.
    """
    if skip_frozen:
        gc.collect()
    else:
        frozen = gc.get_freeze_count()
        gc.unfreeze()
        gc.collect()
        if frozen:
            gc.freeze()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL("libc.so.6").malloc_trim(0)
