"""Launches of products with quantised matrices. Worker process; imports Triton."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
import triton

from tenonry_attention_triton import kept, matrix_kernels

TILES = (16, 64, 128)  # rows of a tile, of few variants of the kernel
MANY = 64  # more rows are bound by their products, and tiles are larger
ROUND_BLOCK = 2048
ROUND_OPTIONS = {"num_warps": 4}


class RoundedRows(NamedTuple):
    """Rows in fp8: `values` float8_e4m3fn[N, size], with a scale per row, `scales` f32[N, 1]."""

    values: torch.Tensor
    scales: torch.Tensor

    @classmethod
    def empty(cls, rows: int, size: int, device: torch.device) -> RoundedRows:
        return cls(
            torch.empty(rows, size, dtype=torch.float8_e4m3fn, device=device),
            torch.empty(rows, 1, dtype=torch.float32, device=device),
        )

    @property
    def octets(self) -> torch.Tensor:
        """The values as kernels write them."""
        return self.values.view(torch.uint8)


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
    tiles = (
        TILES if itemsize <= 2 else TILES[:2]
    )  # products of float32 hold their operands in registers
    tile = next((size for size in tiles if rows <= size), tiles[-1])
    is_large = tile > MANY
    eight = kept.FP8 if layer.is_float else kept.INT8
    return {
        "CHUNK": layer.chunk, "PER_GROUP": layer.per_group,
        "KIND": matrix_kernels.FOUR_BITS if layer.bits == 4 else eight, "HAS_ZEROS": layer.zeros is not None,
        "HAS_BIAS": layer.bias is not None, "M": tile, "N": 64 if is_large else 32,
        "num_warps": 8 if tile == tiles[-1] else 4,
        "num_stages": (2 if is_large else 3) if itemsize <= 2 else 1,
    }  # fmt: skip


def product(layer: Layout, x: torch.Tensor, out: torch.Tensor) -> None:
    """`out` [N, outputs] of contiguous `x` [N, inputs]."""
    rows = len(x)
    given = constants(layer, rows, x.itemsize)
    grid = (triton.cdiv(layer.outputs, given["N"]), triton.cdiv(rows, given["M"]))
    absent = layer.scales
    matrix_kernels.product[grid](
        x, layer.packed_octets, layer.scales, absent if layer.zeros is None else layer.zeros,
        absent if layer.bias is None else layer.bias, out, rows, layer.outputs, layer.chunks, x.stride(0), **given,
    )  # fmt: skip


def warm(layer: Layout, dtype: torch.dtype) -> None:
    """Launch each variant once, so that none is compiled in a step."""
    for rows in TILES:
        x = torch.zeros(
            rows, layer.chunks * layer.chunk, dtype=dtype, device=layer.packed_octets.device
        )
        product(layer, x, x.new_empty(rows, layer.outputs))


def rounded_rows(x: torch.Tensor) -> RoundedRows:
    """Contiguous `x` [N, inputs] in fp8."""
    rows, size = x.shape
    made = RoundedRows.empty(rows, size, x.device)
    matrix_kernels.round_rows[(rows,)](
        x, made.octets, made.scales, size, BLOCK=ROUND_BLOCK, **ROUND_OPTIONS
    )
    return made
