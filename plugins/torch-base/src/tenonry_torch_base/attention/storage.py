"""Large zeroed tensors that cost nothing until they are used. Worker process."""

from __future__ import annotations

import contextlib
import math
import mmap

import numpy as np
import torch

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return zeros. On the CPU the system allocates each page at the first write, so memory follows use.

    `torch.zeros` writes all pages: seconds, and gigabytes resident, for a cache that may never fill.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    skip = -raw.ctypes.data % ALIGNMENT
    return torch.from_numpy(raw[skip : skip + size]).view(dtype).view(shape)


def paged_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """As `zeros`, in the smallest pages, for sparsely used tensors.

    A block of a KV cache has a few kilobytes in each layer, and would occupy a huge page of 2 MiB in each.
    """
    if device.type != "cpu" or not hasattr(mmap, "MADV_NOHUGEPAGE"):
        return zeros(shape, dtype, device)
    size = math.prod(shape) * dtype.itemsize
    pages = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8)[:size].view(dtype).view(shape)
