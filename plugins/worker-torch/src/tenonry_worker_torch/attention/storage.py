"""Large zeroed tensors that cost nothing until they are used. Worker process."""

from __future__ import annotations

import math

import numpy as np
import torch

ALIGNMENT = 64  # bytes: a cache line, and the widest vector register


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros. On the CPU the system allocates each page when it is first written, so memory follows use.

    `torch.zeros` writes them all: seconds, and gigabytes resident, for a cache that may never fill.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    skip = -raw.ctypes.data % ALIGNMENT
    return torch.from_numpy(raw[skip : skip + size]).view(dtype).view(shape)
