"""Random numbers that are the same every time, without a trace in the caller's. Worker process."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

CPU = torch.device("cpu")


@contextlib.contextmanager
def seeded(seed: int, device: torch.device = CPU) -> Iterator[None]:
    """Seed random numbers of the CPU and of `device` in this block; the caller's continue after it.

    `torch.manual_seed` would seed the generators of all devices, without restoring them; without a GPU it also stores a
    formatted stack for each call, which takes milliseconds.
    """
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        for each in devices:
            with torch.cuda.device(each):
                torch.cuda.manual_seed(seed)
        yield
