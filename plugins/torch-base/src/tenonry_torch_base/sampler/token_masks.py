"""Masks of one bit per token over logits, in the layout of `tenonry_grammars.bits`. Worker process, any device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tenonry_grammars.bits import WORD_BITS, unpacked

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenonry_grammars.bits import I32

FORBIDDEN = float("-inf")


def limits_by_byte() -> NDArray[np.float32]:
    """f32[256, 8]: for each byte of a mask the largest logit that each of its eight tokens may have."""
    every_byte = np.arange(256, dtype=np.uint8)[:, None]
    return np.where(unpacked(every_byte), np.float32(np.inf), np.float32(-np.inf))


LIMITS = limits_by_byte()


def forbid_on_host(
    logits: torch.Tensor,
    masks: I32,
) -> None:
    """Set f32[N, V] `logits` to −∞ where i32[N, words] `masks` have no bit; a NaN stays."""
    values = logits.numpy()
    width = values.shape[1]
    limits = _limits(masks)
    limits = limits.reshape(len(masks), -1)
    np.minimum(values, limits[:, :width], out=values)


def best_on_host(
    logits: torch.Tensor,
    masks: I32,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The place of the first largest allowed logit of each row, i64[N], and that logit, f32[N]; `logits` [N, V] stay.

    V is a multiple of `WORD_BITS`. The logit is −∞ where a row allows none that is larger, and NaN where the row holds
    one. Only logits of words with a bit are looked at, which are few where a grammar leaves few tokens.
    """
    best = np.full(len(masks), FORBIDDEN, np.float32)
    ids = np.zeros(len(masks), np.int64)
    places = np.flatnonzero(masks)
    if len(places):
        row, column = np.divmod(places, masks.shape[1])
        by_word = logits.view(-1, WORD_BITS)
        words = by_word.index_select(0, torch.from_numpy(places))
        words = words.float()
        limits = torch.from_numpy(_limits(masks.reshape(-1)[places]))
        torch.minimum(
            words,
            limits.view(words.shape),
            out=words,
        )
        top = words.amax(-1).numpy()
        is_first = np.ones(len(places), np.bool_)
        np.not_equal(row[1:], row[:-1], out=is_first[1:])
        first_word = np.flatnonzero(is_first)
        present = row[first_word]
        best[present] = np.maximum.reduceat(top, first_word)
        order = np.arange(len(places))
        order[top < best[row]] = len(places) - 1
        chosen = np.minimum.reduceat(order, first_word)
        in_word = words.numpy()[chosen].argmax(-1)
        ids[present] = WORD_BITS * column[chosen] + in_word
    found = torch.from_numpy(best)
    is_nan = logits.amax(-1).isnan()
    found.masked_fill_(is_nan, float("nan"))
    return torch.from_numpy(ids), found


def _limits(masks: I32) -> NDArray[np.float32]:
    """The largest logit that each token may have, eight tokens per line: looked up, which is quicker than filling."""
    return LIMITS.take(masks.reshape(-1).view(np.uint8), axis=0)


def forbid_on_device(
    logits: torch.Tensor,
    masks: torch.Tensor,
) -> None:
    """The same where numpy does not reach."""
    shifts = torch.arange(
        WORD_BITS,
        dtype=torch.int32,
        device=masks.device,
    )
    bits = (masks[:, :, None] >> shifts) & 1
    forbidden = (bits == 0).flatten(1)
    logits.masked_fill_(forbidden[:, : logits.shape[1]], FORBIDDEN)
