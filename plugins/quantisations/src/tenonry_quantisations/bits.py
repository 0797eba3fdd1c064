"""Small integers out of words of 32 bits, the low bits first. Worker process."""

from __future__ import annotations

import torch

WORD_BITS = 32
WIDTHS = (4, 8)


def unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """`words` int32[rows, n] → int8[rows, n · 32 / bits], less half of the range, so that 0 lies in the middle."""
    octets = words.contiguous().view(torch.uint8)
    if bits == 8:
        return octets.bitwise_xor(128).view(torch.int8)
    rows, count = octets.shape
    made = torch.empty(rows, count, 2, dtype=torch.uint8)
    torch.bitwise_and(octets, 15, out=made[..., 0])
    torch.bitwise_right_shift(octets, 4, out=made[..., 1])
    return made.view(torch.int8).view(rows, 2 * count).sub_(8)
