"""Transfer of per-step inputs to the device; the extension point `tenonry.buffers`. Worker process.

`host` passes arrays unchanged: nothing is copied on the CPU, and on another device each copy comes from pageable
memory. A buffers plugin for a device has its own pinned memory, one set per step in flight.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import torch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class StepBuffers(ABC):
    """Order of calls: constructor once, then per step `begin_step` and any number of `put`.

    Packages that do not depend on this one need not inherit: a class that has all of it is one of these.
    """

    name: ClassVar[str]
    interface_version: ClassVar[int] = 1

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        names = ("name", "interface_version", "begin_step", "put")
        return (
            True
            if cls is StepBuffers and all(hasattr(other, name) for name in names)
            else NotImplemented
        )

    def __init__(self, device: torch.device, steps_in_flight: int) -> None:
        self.device = device
        self.steps_in_flight = steps_in_flight

    def begin_step(self) -> None:  # noqa: B027 - only buffers with memory of their own need it
        """A new step starts: memory handed out `steps_in_flight` steps ago may be used again."""

    @abstractmethod
    def put(self, label: str, array: NDArray[np.generic]) -> torch.Tensor:
        """`array` as a tensor on the device, valid until its step has run. `label` is unique within a step."""


def put_on_host(_label: str, array: NDArray[np.generic]) -> torch.Tensor:
    """Wrap the array as a tensor, valid longer than tensors of step buffers: as long as one of the two."""
    return torch.from_numpy(array)


def put_in_order(array: NDArray[np.generic], device: torch.device) -> torch.Tensor:
    """Copy the array to the device without waiting for it; on the CPU the two share memory.

    The tensor is its own and may outlive the step. torch's allocator of pinned memory reuses a block only once the copy
    out of it has run, so the array may change as soon as the call returns.
    """
    tensor = torch.as_tensor(array)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


class HostBuffers(StepBuffers):
    """Buffers without a copy on the CPU, and with a plain copy elsewhere."""

    name: ClassVar[str] = "host"

    def put(self, label: str, array: NDArray[np.generic]) -> torch.Tensor:
        tensor = put_on_host(label, array)
        return tensor if self.device.type == "cpu" else tensor.to(self.device)
