"""A tensor on the CPU, its counterpart on a device, and the copies between them. Worker process.

All copies are launched without waiting. From pinned memory such a copy overlaps with the host; from pageable memory,
and between CPU tensors, it is done on return.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray


class CpuGpuBuffer:
    """`cpu` and `gpu`, both zeroed, of shape `size` and one dtype; `np`: the memory of `cpu` as a numpy array.

    `pin_memory` makes the CPU's side page-locked, which needs a CUDA device. With `with_numpy=False` there is no `np`.
    Raises ValueError for bfloat16 with numpy, which lacks it.
    """

    cpu: torch.Tensor
    gpu: torch.Tensor
    np: NDArray[Any]

    def __init__(
        self,
        *size: int,
        dtype: torch.dtype,
        device: torch.device | str,
        pin_memory: bool,
        with_numpy: bool = True,
    ) -> None:
        if with_numpy and dtype == torch.bfloat16:
            raise ValueError(
                "dtype=torch.bfloat16 has no numpy type to view it with; pass with_numpy=False and write to .cpu"
            )
        self.cpu = torch.zeros(*size, dtype=dtype, device="cpu", pin_memory=pin_memory)
        self.gpu = torch.zeros_like(self.cpu, device=device)
        if with_numpy:
            self.np = self.cpu.numpy()

    def copy_to_gpu(self, n: int | None = None) -> torch.Tensor:
        """Start copying all, or the first `n` along dimension 0; returns the destination.

        Later work of the current stream sees the copy; `cpu` may be written again only once the copy has run.
        """
        return _copy(self.cpu, self.gpu, n)

    def copy_to_cpu(self, n: int | None = None) -> torch.Tensor:
        """Copy in the other direction. The caller synchronises (an event, or the stream) before it reads."""
        return _copy(self.gpu, self.cpu, n)


def _copy(src: torch.Tensor, dst: torch.Tensor, n: int | None) -> torch.Tensor:
    if n is None:
        return dst.copy_(src, non_blocking=True)
    return copy_slice(src, dst, n)


def copy_slice(src: torch.Tensor, dst: torch.Tensor, length: int) -> torch.Tensor:
    """Start copying `src[:length]` into `dst[:length]`, which is returned."""
    begin = dst[:length]
    return begin.copy_(src[:length], non_blocking=True)


def tensor_data(tensor: torch.Tensor) -> memoryview:
    """The tensor's bytes in row-major order, as a view of unsigned bytes.

    It shares the memory of a contiguous CPU tensor; other tensors are copied into one first, waiting for the device.
    """
    on_host = tensor.detach().cpu()
    elements = on_host.contiguous().flatten()
    octets = elements.view(torch.uint8)
    data: memoryview = octets.numpy().data
    return data
