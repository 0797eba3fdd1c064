"""Launches of products with quantised matrices. Worker process; imports Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import triton

from tenonry_attention_triton import kept, matrix_kernels

if TYPE_CHECKING:
    import torch

FEWEST, MOST = 16, 64  # rows of a tile; the smallest side of a matrix product


class Layout(Protocol):
    """A matrix as the kernel reads it; `bits` of a value, which is a float if `is_float`."""

    outputs: int
    chunk: int
    chunks: int
    per_group: int
    bits: int
    is_float: bool
    packed_octets: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    bias: torch.Tensor | None


def constants(layer: Layout, rows: int, itemsize: int) -> dict[str, Any]:
    """Constants and options of the kernel for a number of rows."""
    tile = min(MOST, max(FEWEST, triton.next_power_of_2(rows)))
    eight = kept.FP8 if layer.is_float else kept.INT8
    return {
        "CHUNKS": layer.chunks, "CHUNK": layer.chunk, "PER_GROUP": layer.per_group,
        "KIND": matrix_kernels.FOUR_BITS if layer.bits == 4 else eight, "HAS_ZEROS": layer.zeros is not None,
        "HAS_BIAS": layer.bias is not None, "M": tile, "N": 32, "num_warps": 4,
        "num_stages": 3 if itemsize <= 2 else 1,
    }  # fmt: skip


def few_rows(layer: Layout, x: torch.Tensor, out: torch.Tensor) -> None:
    """`out` [N, outputs] of contiguous `x` [N, inputs]."""
    rows = len(x)
    given = constants(layer, rows, x.itemsize)
    grid = (triton.cdiv(layer.outputs, given["N"]), triton.cdiv(rows, given["M"]))
    absent = layer.scales
    matrix_kernels.few_rows[grid](
        x, layer.packed_octets, layer.scales, absent if layer.zeros is None else layer.zeros,
        absent if layer.bias is None else layer.bias, out, rows, layer.outputs, x.stride(0), **given,
    )  # fmt: skip
