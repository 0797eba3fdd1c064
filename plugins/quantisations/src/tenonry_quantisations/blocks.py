"""Blocks of GGUF files as values, scales and zero points, without their floats. Worker process.

https://github.com/ggml-org/ggml has the layouts: a scale, sometimes a minimum, and small integers of 32 inputs; those
of 256 inputs (K) have a scale in 6 or 8 bits for each 32 or 16 of them. A number is value · scale + minimum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from tenonry_torch_base.quantisations import QuantisedWeight, zero_points

if TYPE_CHECKING:
    from collections.abc import Callable

GROUPS = 8  # of 32 inputs, in a block of 256


class Parts(NamedTuple):
    """`values` uint8 [blocks, …] of all inputs, `scales` and `minimums` float32 [blocks, groups]."""

    values: torch.Tensor
    scales: torch.Tensor
    minimums: torch.Tensor | None = None


class Kind(NamedTuple):
    """`middle`: of the range of values, which have no sign in the file; 0 for those that have one. `has_minimum`: the
    middle is no zero point.
    """

    inputs: int
    num_bytes: int
    bits: int
    middle: int
    parts: Callable[[torch.Tensor], Parts]


def matrix(kind: Kind, blocks: torch.Tensor) -> QuantisedWeight:
    """`blocks` uint8[out, bytes] of a kind."""
    rows = len(blocks)
    values, scales, minimums = kind.parts(blocks.reshape(-1, kind.num_bytes))
    zeros = None
    if minimums is not None:
        scales, zeros = zero_points(scales, minimums)
        zeros = zeros.sub_(kind.middle).view(rows, -1)
    signed = values if kind.middle == 0 else values.sub_(kind.middle)
    return QuantisedWeight(
        bits=kind.bits,
        values=signed.view(torch.int8).view(rows, -1),
        scales=scales.reshape(rows, -1),
        zeros=zeros,
    )


def _halves(blocks: torch.Tensor, place: int) -> torch.Tensor:
    """The float16 at a byte of each block: [blocks, 1]."""
    return blocks[:, place : place + 2].contiguous().view(torch.float16).float()


def _nibbles(octets: torch.Tensor) -> torch.Tensor:
    """[blocks, …, n] → [blocks, …, 2, n]: the low halves, and then the high ones."""
    return torch.stack([octets & 15, octets >> 4], -2)


def _q4_0(blocks: torch.Tensor) -> Parts:
    return Parts(_nibbles(blocks[:, 2:]), _halves(blocks, 0))


def _q4_1(blocks: torch.Tensor) -> Parts:
    return Parts(_nibbles(blocks[:, 4:]), _halves(blocks, 0), _halves(blocks, 2))


def _fifths(octets: torch.Tensor) -> torch.Tensor:
    """The fifth bits of 32 values, in 4 bytes: [blocks, 2, 16], each at its place."""
    shifts = torch.arange(8, dtype=torch.uint8)
    return ((octets[:, :, None] >> shifts) & 1).view(-1, 2, 16) << 4


def _q5_0(blocks: torch.Tensor) -> Parts:
    return Parts(_nibbles(blocks[:, 6:]) | _fifths(blocks[:, 2:6]), _halves(blocks, 0))


def _q5_1(blocks: torch.Tensor) -> Parts:
    values = _nibbles(blocks[:, 8:]) | _fifths(blocks[:, 4:8])
    return Parts(values, _halves(blocks, 0), _halves(blocks, 2))


def _q8_0(blocks: torch.Tensor) -> Parts:
    return Parts(blocks[:, 2:].contiguous(), _halves(blocks, 0))


def _of_six_bits(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and minimums of the groups of a block of 256, as 12 bytes hold them."""
    first, second, rest = blocks[:, 4:16].split(4, 1)
    scales = torch.cat([first & 63, (rest & 15) | (first >> 6 << 4)], 1)
    minimums = torch.cat([second & 63, (rest >> 4) | (second >> 6 << 4)], 1)
    return scales * _halves(blocks, 0), minimums * -_halves(blocks, 2)


def _q4_k(blocks: torch.Tensor) -> Parts:
    return Parts(_nibbles(blocks[:, 16:].view(-1, 4, 32)), *_of_six_bits(blocks))


def _q5_k(blocks: torch.Tensor) -> Parts:
    shifts = torch.arange(GROUPS, dtype=torch.uint8)[:, None]
    fifths = ((blocks[:, None, 16:48] >> shifts) & 1) << 4
    values = _nibbles(blocks[:, 48:].view(-1, 4, 32)).view(-1, GROUPS, 32) | fifths
    return Parts(values, *_of_six_bits(blocks))


def _q6_k(blocks: torch.Tensor) -> Parts:
    low = _nibbles(blocks[:, :128].view(-1, 2, 64)).view(-1, 2, 4, 32)
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8)[:, None]
    high = ((blocks[:, 128:192].view(-1, 2, 1, 32) >> shifts) & 3) << 4
    scales = blocks[:, 192:208].view(torch.int8) * _halves(blocks, 208)
    return Parts(low | high, scales)


KINDS = {
    "Q4_0": Kind(32, 18, 4, 8, _q4_0),
    "Q4_1": Kind(32, 20, 4, 8, _q4_1),
    "Q5_0": Kind(32, 22, 5, 16, _q5_0),
    "Q5_1": Kind(32, 24, 5, 16, _q5_1),
    "Q8_0": Kind(32, 34, 8, 0, _q8_0),
    "Q4_K": Kind(256, 144, 4, 8, _q4_k),
    "Q5_K": Kind(256, 176, 5, 16, _q5_k),
    "Q6_K": Kind(256, 210, 6, 32, _q6_k),
}
