"""Linear layers in bfloat16 whose weight oneDNN lays out for itself. Worker process.

On a CPU with bfloat16 arithmetic a prepacked weight halves the time of a single token and saves the reordering of
every call; the residual addition rides along in the same kernel.
"""

from __future__ import annotations

import ctypes
import math
from functools import cache
from typing import TYPE_CHECKING

import torch

from tenonry_torch_base.step_kernels import BlockedWeight
from tenonry_worker_torch.fuse.generic import PackedModule
from tenonry_worker_torch.fuse.linear import detached_bias, is_half_on_host, mark_packed, merge

if TYPE_CHECKING:
    from torch import nn

    from tenonry_worker_torch.fuse.linear import DenseLinear, Packing, PartedLinear

# torch has no public name for these (its own compiler calls them); `can_pack` checks that they exist.
_ONEDNN = torch.ops.mkldnn
# The batch for which oneDNN chooses the layout. For one row, it has blocks of 64 outputs wherever the processor has
# products of bfloat16, and kernels can read these; for many it may have blocks of 32 (AMX), which were no quicker from
# 1 to 1024 rows.
PACK_ROWS = 1


class PackedLinear:
    """A weight in oneDNN's own layout; the original can be dropped."""

    __slots__ = ("bias", "out_features", "weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.out_features = weight.shape[0]
        self.weight = _ONEDNN._reorder_linear_weight(weight.contiguous(), PACK_ROWS)  # noqa: SLF001
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return _ONEDNN._linear_pointwise.default(  # noqa: SLF001
            x, self.weight, self.bias, "none", [], ""
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        outputs, inputs = self.weight.shape
        return outputs, inputs

    def packed(self, _packing: Packing) -> PackedLinear:
        return self

    def add(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return _ONEDNN._linear_pointwise.binary(  # noqa: SLF001
            x, other, self.weight, self.bias, "add"
        )

    def in_rows(self) -> torch.Tensor:
        """The weight [out, in]."""
        with torch.inference_mode(False), torch.no_grad():
            return self.weight.to_dense()

    def blocked(self) -> BlockedWeight | None:
        """The weight in its memory layout, for kernels; None if oneDNN chose a layout unknown to them.

        `can_pack` checks the layout, and comparisons of results confirm it.
        """
        if not hasattr(_ONEDNN, "data_ptr") or not hasattr(_ONEDNN, "_nbytes"):
            return None
        outputs, inputs = self.weight.shape
        shape = (-(-outputs // 64), 16 * -(-inputs // 32), 64, 2)
        if _ONEDNN._nbytes(self.weight) != math.prod(shape) * 2:  # noqa: SLF001
            return None
        begin = _ONEDNN.data_ptr(self.weight)
        held = (ctypes.c_uint8 * (math.prod(shape) * 2)).from_address(begin)
        held.owner = self.weight  # type: ignore[attr-defined] - lives as long as what looks at it
        blocks = torch.frombuffer(held, dtype=torch.bfloat16).view(shape)
        bias = None if self.bias is None else self.bias.detach().float()
        return BlockedWeight(outputs=outputs, inputs=inputs, blocks=blocks, bias=bias)


class OneDnnPacking:
    """Packing in oneDNN's layout. The source modules of a weight lose theirs, so that nothing is stored twice."""

    def dense(self, linear: DenseLinear) -> PackedLinear:
        made = pack(linear.weight, linear.bias)
        mark_packed(made, linear.sources)
        return made

    def parted(self, linear: PartedLinear) -> PackedLinear:
        return self.dense(merge(linear.sources))

    def module(self, linear: nn.Linear) -> PackedModule | None:
        if not is_half_on_host(linear.weight.dtype, linear.weight.device):
            return None
        return PackedModule(linear, pack(linear.weight.detach(), detached_bias(linear)))


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Return True if prepacked weights work here and are faster: bfloat16 on a CPU with bfloat16 products."""
    return (
        is_half_on_host(dtype, device)
        and torch.backends.mkldnn.is_available()
        and _ONEDNN._is_mkldnn_bf16_supported()  # noqa: SLF001
        and hasattr(_ONEDNN, "_reorder_linear_weight")
        and _makes_blocks()
    )


@cache
def _makes_blocks() -> bool:
    """Return True if oneDNN lays weights out in blocks.

    It reports support for bfloat16 on all CPUs with AVX-512, and widens it on those without bfloat16 products. There,
    blocks of floats were 1.5 times as fast for 512 rows, and kernels, which read no other layout, 3 times.
    """
    numbers = torch.arange(128 * 64, dtype=torch.int16).view(torch.bfloat16).view(128, 64)
    found = pack(numbers, None).blocked()
    wanted = numbers.view(2, 64, 32, 2).transpose(1, 2)
    return found is not None and torch.equal(
        found.blocks.view(torch.int16), wanted.contiguous().view(torch.int16)
    )


def pack(weight: torch.Tensor, bias: torch.Tensor | None) -> PackedLinear:
    """Pack outside inference mode: inference tensors cannot be kept in oneDNN's layout."""
    with torch.inference_mode(False), torch.no_grad():
        return PackedLinear(weight, bias)
