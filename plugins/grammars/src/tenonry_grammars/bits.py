"""Masks of tokens: one bit per token id, in words of 32. Any process."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]
WORD_BITS = 32
NOTHING = 0  # a word that allows no token
EVERYTHING = -1


def num_words(vocab_size: int) -> int:
    """Length of a mask."""
    return -(-vocab_size // WORD_BITS)


def allow(mask: I32, token_ids: Iterable[int]) -> None:
    """Set the bits of these ids in one mask."""
    words = mask.view(np.uint32)
    for token_id in token_ids:
        word, bit = divmod(token_id, WORD_BITS)
        words[word] |= np.uint32(1 << bit)


def forbid(mask: I32, token_ids: Iterable[int]) -> None:
    """Clear the bits of these ids in one mask."""
    words = mask.view(np.uint32)
    for token_id in token_ids:
        word, bit = divmod(token_id, WORD_BITS)
        words[word] &= ~np.uint32(1 << bit)


def unpacked(masks: I32) -> NDArray[np.uint8]:
    """One byte per token, 0 or 1, of masks [..., words]."""
    return np.unpackbits(masks.view(np.uint8), axis=-1, bitorder="little")


def allowed_ids(mask: I32) -> NDArray[np.intp]:
    """The ids whose bits are set in one mask; most masks allow a few of many, and have few words with any."""
    words = mask.nonzero()[0]
    places = unpacked(mask[words]).nonzero()[0]
    return words[places // WORD_BITS] * WORD_BITS + places % WORD_BITS
