"""Weights of a model in main memory while its device has none of them. Worker process.

The storages of the tensors are emptied and filled again, so module, views, ties and fused layers stay the same objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import nn

    from tenonry_torch_base.quantisations import QuantisedLinear
    from tenonry_worker_torch.loaded_model import LoadedModel

BLOCK_BYTES = 256 << 20  # a power of two: torch rounds pinned memory up to one


class OffloadedModel:
    """A model without its weights. torch keeps the pinned memory of the copies for the next ones."""

    def __init__(self, model: LoadedModel, block_bytes: int = BLOCK_BYTES) -> None:
        """Copies the weights to main memory, and frees them on the device."""
        self.model = model
        held = (tensor for layer in model.quantised_layers for tensor in vars_of(layer))
        self.storages = storages_of([*tensors_of(model.module), *held])
        self._sizes = [storage.nbytes() for storage in self.storages]
        self._host = host_memory(sum(self._sizes), block_bytes, pinned=model.device.type == "cuda")
        for host, device in self._pieces():
            host.copy_(device, non_blocking=True)
        wait_for(model.device)
        self._free()

    def restore(self) -> LoadedModel:
        """The model with its weights on the device. May be called again if memory is short."""
        try:
            for storage, size in zip(self.storages, self._sizes, strict=True):
                storage.resize_(size)
        except BaseException:  # another sleep would not free memory of the device
            self._free()
            raise
        for host, device in self._pieces():
            device.copy_(host, non_blocking=True)
        wait_for(self.model.device)
        return self.model

    def _free(self) -> None:
        for storage in self.storages:
            storage.resize_(0)

    def _pieces(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield corresponding bytes in main memory and on the device, within blocks of the former."""
        block, used = 0, 0
        for storage in self.storages:
            data = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)  # type: ignore[call-overload]
            begin = 0
            while begin < len(data):
                if used == len(self._host[block]):
                    block, used = block + 1, 0
                count = min(len(data) - begin, len(self._host[block]) - used)
                yield self._host[block][used : used + count], data[begin : begin + count]
                begin += count
                used += count


def tensors_of(module: nn.Module) -> Iterator[torch.Tensor]:
    """Parameters and buffers of a module."""
    yield from module.parameters()
    yield from module.buffers()


def vars_of(layer: QuantisedLinear) -> Iterator[torch.Tensor]:
    """Tensors of a quantised layer outside its modules."""
    slots = [name for kind in type(layer).__mro__ for name in getattr(kind, "__slots__", ())]
    values = (getattr(layer, name, None) for name in [*slots, *getattr(layer, "__dict__", ())])
    yield from (value for value in values if isinstance(value, torch.Tensor))


def storages_of(tensors: Iterable[torch.Tensor]) -> list[torch.UntypedStorage]:
    """Their storages, each once, without empty ones."""
    found = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes():
            found[storage.data_ptr()] = storage
    return list(found.values())


def host_memory(size: int, block_bytes: int, *, pinned: bool) -> list[torch.Tensor]:
    """`size` bytes of main memory, in blocks."""
    counts = [block_bytes] * (size // block_bytes)
    if size % block_bytes:
        counts.append(size % block_bytes)
    return [torch.empty(count, dtype=torch.uint8, pin_memory=pinned) for count in counts]


def wait_for(device: torch.device) -> None:
    """Wait until the device completed launched work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
