"""Weights of 4 or 8 bits in the layout of step kernels: conversion from and to a quantised matrix. Worker process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from tenonry_torch_base.quantisations import QuantisedWeight, zero_points

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCK = 64  # outputs of a block
QUAD = 4  # inputs whose bytes lie side by side
GROUP_MULTIPLE = 16  # of inputs with one scale, if there are several groups
LARGEST_INPUTS = 1 << 16  # sums of products of bytes are in 32 bits
LARGEST_GROUP = 256  # the same of two bytes
CHUNK = 1 << 22  # elements laid out together


@dataclass(frozen=True, slots=True, kw_only=True)
class LowBitWeight:
    """A weight [outputs, inputs] of `bits` bits in blocks of 64 outputs: (value − zero) · scale, or with `minimums`
    stored · scale + minimum.

    `blocks` uint8[⌈outputs / 64⌉, lines, 64, 4] stores value + 2^(bits − 1), without sign. With 8 bits a line has four
    inputs: blocks[b, k, r, e] is that of weight[64 · b + r, 4 · k + e]. With 4 bits it has eight, the first four in the
    low halves of the bytes. Elements outside of the weight may be anything.

    `scales` [⌈outputs / 64⌉, groups, 64]: each for an equal number of adjacent inputs, a multiple of 16 if there are
    several groups. `zeros` of that shape, plus 2^(bits − 1) as the values; None if all are 0, or with `minimums`, which
    have that shape too. All have one data type: bfloat16 or float16 where it holds them exactly, else float32.
    `bias` [outputs] in float32, or None. `order` i64[inputs]: columns of the matrix of the inputs; None if they are in
    order. `input_bits`: 8 or 16, precision to which kernels round inputs, with a scale for each group; 16 only with
    groups of at most `LARGEST_GROUP` inputs.
    """

    bits: int
    outputs: int
    inputs: int
    blocks: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    bias: torch.Tensor | None
    order: torch.Tensor | None
    input_bits: int = 8
    minimums: torch.Tensor | None = None

    @property
    def num_groups(self) -> int:
        return self.scales.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        return self.outputs, self.inputs

    @property
    def has_offsets(self) -> bool:
        """True with zero points or minimums."""
        return self.zeros is not None or self.minimums is not None

    @property
    def num_bytes(self) -> int:
        """Size in memory."""
        tensors = (self.blocks, self.scales, self.zeros, self.minimums)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    def rows(self, begin: int, end: int) -> LowBitWeight:
        """Return outputs `begin` to `end`, multiples of 64 or the end, as views of the same memory."""
        first, last = begin // BLOCK, -(-end // BLOCK)
        return replace(
            self,
            outputs=end - begin,
            blocks=self.blocks[first:last],
            scales=self.scales[first:last],
            zeros=None if self.zeros is None else self.zeros[first:last],
            minimums=None if self.minimums is None else self.minimums[first:last],
            bias=None if self.bias is None else self.bias[begin:end],
        )

    @classmethod
    def side_by_side(cls, weights: Sequence[LowBitWeight]) -> LowBitWeight | None:
        """Concatenate outputs of layers with the same input, without biases; None if they are too different."""
        first = weights[0]
        if len(weights) == 1:
            return first
        kinds = {
            (each.bits, each.num_groups, each.zeros is None, each.minimums is None, each.input_bits)
            for each in weights
        }
        is_cut = any(each.outputs % BLOCK for each in weights[:-1])
        has_order = any(each.order is not None for each in weights)
        if len(kinds) > 1 or is_cut or has_order or len({w.scales.dtype for w in weights}) > 1:
            return None
        zeros = [each.zeros for each in weights if each.zeros is not None]
        minimums = [each.minimums for each in weights if each.minimums is not None]
        return replace(
            first,
            outputs=sum(each.outputs for each in weights),
            blocks=torch.cat([each.blocks for each in weights]),
            scales=torch.cat([each.scales for each in weights]),
            zeros=torch.cat(zeros) if zeros else None,
            minimums=torch.cat(minimums) if minimums else None,
            bias=None,
        )

    def matrix(self) -> QuantisedWeight:
        """Convert back to a quantised matrix; the columns of a group are adjacent."""
        middle = 1 << (self.bits - 1)
        values = _in_rows(self.blocks, self.bits)[: self.outputs, : self.inputs]
        scales = _of_outputs(self.scales, self.outputs).float()
        zeros = None
        if self.zeros is not None:
            zeros = _of_outputs(self.zeros, self.outputs).float() - middle
        if self.minimums is not None:
            scales, zeros = zero_points(scales, _of_outputs(self.minimums, self.outputs).float())
            zeros -= middle
        group_of = None
        if self.order is not None:
            width = self.inputs // self.num_groups
            group_of = torch.empty_like(self.order)
            group_of[self.order] = torch.arange(self.inputs) // width
            values = values[:, self.order.argsort()]
        return QuantisedWeight(
            bits=self.bits,
            values=(values.contiguous() - middle).view(torch.int8),
            scales=scales,
            zeros=zeros,
            group_of=group_of,
        )


def empty_weight(
    bits: int, outputs: int, inputs: int, groups: int, dtype: torch.dtype, *, has_minimums: bool
) -> LowBitWeight | None:
    """A weight to be filled in, with scales in `dtype`; None if kernels do not support its groups or sizes."""
    if not _is_known(bits, inputs, groups):
        return None
    count = -(-outputs // BLOCK)
    lines = -(-inputs * bits // (8 * QUAD))
    make = torch.zeros if outputs % BLOCK else torch.empty
    return LowBitWeight(
        bits=bits,
        outputs=outputs,
        inputs=inputs,
        blocks=make(count, lines, BLOCK, QUAD, dtype=torch.uint8),
        scales=make(count, groups, BLOCK, dtype=dtype),
        zeros=None,
        bias=None,
        order=None,
        minimums=make(count, groups, BLOCK, dtype=dtype) if has_minimums else None,
    )


def _is_known(bits: int, inputs: int, groups: int) -> bool:
    if not (0 < bits <= 8 and 0 < inputs <= LARGEST_INPUTS and inputs % groups == 0):
        return False
    return groups == 1 or inputs // groups % GROUP_MULTIPLE == 0


def low_bit_weight(weight: QuantisedWeight, bias: torch.Tensor | None) -> LowBitWeight | None:
    """Convert a quantised matrix; None if kernels do not support its groups or sizes."""
    if weight.values.dtype != torch.int8:  # floats of 8 bits
        return None
    outputs, inputs = weight.shape
    groups = weight.num_groups
    if not _is_known(weight.bits, inputs, groups):
        return None
    bits = 4 if weight.bits <= 4 else 8
    order = None
    values = weight.values
    if weight.group_of is not None:
        counts = weight.group_of.bincount(minlength=groups)
        if counts.min() != counts.max():
            return None
        order = weight.group_of.argsort(stable=True)
        values = values[:, order]
    middle = 1 << (bits - 1)
    scales, zeros = _in_halves(
        _in_blocks(weight.scales),
        None if weight.zeros is None else _in_blocks(weight.zeros.float() + middle),
    )
    return LowBitWeight(
        bits=bits,
        outputs=outputs,
        inputs=inputs,
        blocks=_blocks(values, bits),
        scales=scales,
        zeros=zeros,
        bias=None if bias is None else bias.detach().float(),
        order=order,
    )


def matrix_of(weight: QuantisedWeight | LowBitWeight) -> QuantisedWeight:
    """The matrix in the form that quantisations compute with."""
    return weight.matrix() if isinstance(weight, LowBitWeight) else weight


def _in_halves(
    scales: torch.Tensor, zeros: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Both in bfloat16 if it holds them exactly."""
    halves = scales.bfloat16()
    zero_halves = None if zeros is None else zeros.bfloat16()
    is_exact = torch.equal(halves.float(), scales)
    if zeros is not None and zero_halves is not None:
        is_exact &= torch.equal(zero_halves.float(), zeros)
    return (halves, zero_halves) if is_exact else (scales, zeros)


def _in_blocks(each: torch.Tensor) -> torch.Tensor:
    """[outputs, groups] → [blocks, groups, 64], filled up with zeros."""
    outputs, groups = each.shape
    filled = functional.pad(each, (0, 0, 0, -outputs % BLOCK))
    return filled.view(-1, BLOCK, groups).transpose(1, 2).contiguous()


def _of_outputs(each: torch.Tensor, outputs: int) -> torch.Tensor:
    """The reverse of `_in_blocks`."""
    return each.transpose(1, 2).reshape(-1, each.shape[1])[:outputs]


def _blocks(values: torch.Tensor, bits: int) -> torch.Tensor:
    """`values` int8[outputs, inputs] → uint8[blocks, lines, 64, 4]."""
    outputs, inputs = values.shape
    parts = 8 // bits
    lines = -(-inputs // (QUAD * parts))
    count = -(-outputs // BLOCK)
    made = torch.empty(count, lines, BLOCK, QUAD, dtype=torch.uint8)
    step = max(1, CHUNK // (BLOCK * max(inputs, 1)))
    missing = lines * QUAD * parts - inputs
    for begin in range(0, count, step):
        rows = values[begin * BLOCK : (begin + step) * BLOCK]
        if missing or len(rows) % BLOCK:
            rows = functional.pad(rows, (0, missing, 0, -len(rows) % BLOCK))
        stored = (rows ^ -128 if bits == 8 else rows + 8).view(torch.uint8)
        each = stored.view(-1, BLOCK, lines, parts, QUAD)
        octets = each[..., 0, :] if parts == 1 else each[..., 0, :] | each[..., 1, :] << 4
        made[begin : begin + step] = octets.transpose(1, 2)
    return made


def _in_rows(blocks: torch.Tensor, bits: int) -> torch.Tensor:
    """The reverse of `_blocks`, with padding, unsigned."""
    count, lines = blocks.shape[:2]
    each = blocks.transpose(1, 2)[..., None, :]
    if bits == 4:
        each = torch.cat([each & 15, each >> 4], -2)
    return each.reshape(count * BLOCK, lines * QUAD * 8 // bits)
