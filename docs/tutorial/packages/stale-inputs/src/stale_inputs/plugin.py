"""Buffers `stale-inputs`: overwrites the inputs of past steps, to find code that keeps them. Worker process."""

from __future__ import annotations

from collections import deque
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from tenonry_torch_base.buffers import StepBuffers


def poison(dtype: torch.dtype) -> float | int | bool:
    """NaN, or an index far out of range: kernels that read it fail visibly."""
    if dtype == torch.bool:
        return True
    return torch.nan if dtype.is_floating_point else torch.iinfo(dtype).max


class StaleInputs(StepBuffers):
    """Copies each array, and overwrites the copy as soon as the contract permits."""

    interface_version = 1
    name: ClassVar[str] = "stale-inputs"

    def __init__(self, device: torch.device, steps_in_flight: int) -> None:
        super().__init__(device, steps_in_flight)
        self._steps: deque[list[torch.Tensor]] = deque([[]])

    def begin_step(self) -> None:
        if len(self._steps) == self.steps_in_flight:
            for tensor in self._steps.popleft():
                tensor.fill_(poison(tensor.dtype))
        self._steps.append([])

    def put(self, label: str, array: NDArray[np.generic]) -> torch.Tensor:
        tensor = torch.from_numpy(array.copy()).to(self.device)
        self._steps[-1].append(tensor)
        return tensor
