"""Masks of one bit per token over logits, in the layout of `tenonry_grammars.bits`. Worker process, any device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tenonry_grammars.bits import NOTHING, WORD_BITS, unpacked
from tenonry_torch_base.sampler.choose import greedy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenonry_grammars.bits import I32

FORBIDDEN = float("-inf")


def limits_by_byte() -> NDArray[np.float32]:
    """f32[256, 8]: for each byte of a mask the largest logit that each of its eight tokens may have."""
    every_byte = np.arange(256, dtype=np.uint8)[:, None]
    return np.where(unpacked(every_byte), np.float32(np.inf), np.float32(-np.inf))


LIMITS = limits_by_byte()


def forbid_on_host(logits: torch.Tensor, masks: I32) -> None:
    """Set f32[N, V] `logits` to −∞ where i32[N, words] `masks` have no bit; a NaN stays."""
    values = logits.numpy()
    width = values.shape[1]
    limits = _limits(masks)
    limits = limits.reshape(len(masks), -1)
    np.minimum(values, limits[:, :width], out=values)


def best_on_host(logits: torch.Tensor, masks: I32) -> tuple[torch.Tensor, torch.Tensor]:
    """Index of the first largest allowed logit of each row, i64[N], and that logit, f32[N]; `logits` [N, V] stay
    unchanged.

    V is a multiple of `WORD_BITS`. The logit is −∞ if a row allows no larger one, and NaN if the row holds one. A row
    whose first largest logit is allowed needs no further search.
    """
    ids, is_nan = greedy(logits)
    best = logits.gather(1, ids[:, None])[:, 0].float()
    best.masked_fill_(is_nan, float("nan"))
    places = ids.numpy()
    words = masks[np.arange(len(places)), places // WORD_BITS]
    is_allowed = (words >> (places % WORD_BITS)) & 1
    lines = np.flatnonzero(is_allowed == 0)
    if len(lines):
        found = _best_of_few(logits, masks, lines)
        places[lines] = found[0]
        top = best.numpy()
        top[lines] = np.where(np.isnan(top[lines]), top[lines], found[1])
    return ids, best


def _best_of_few(
    logits: torch.Tensor, masks: I32, lines: NDArray[np.intp]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """As `best_on_host`, for some rows, without their NaN. Only logits of words with a bit are read."""
    best = np.full(len(lines), FORBIDDEN, np.float32)
    ids = np.zeros(len(lines), np.int64)
    num_words = masks.shape[1]
    some = masks if len(lines) == len(masks) else masks[lines]
    places = np.flatnonzero(some != NOTHING)
    if not len(places):
        return ids, best
    row, column = np.divmod(places, num_words)
    words = logits.view(-1, WORD_BITS).index_select(
        0, torch.from_numpy(lines[row] * num_words + column)
    )
    words = words.float()
    values = words.numpy()
    limits = _limits(some.reshape(-1)[places])
    np.minimum(values, limits.reshape(values.shape), out=values)
    top = words.amax(-1).numpy()  # eight times as quick as numpy's over so few
    is_first = np.ones(len(places), np.bool_)
    np.not_equal(row[1:], row[:-1], out=is_first[1:])
    first_word = np.flatnonzero(is_first)
    present = row[first_word]
    best[present] = np.maximum.reduceat(top, first_word)
    order = np.arange(len(places))
    order[top < best[row]] = len(places) - 1
    chosen = np.minimum.reduceat(order, first_word)
    in_word = values[chosen].argmax(-1)
    ids[present] = WORD_BITS * column[chosen] + in_word
    return ids, best


def _limits(masks: I32) -> NDArray[np.float32]:
    """Maximum permitted logit of each token, eight tokens per lookup, which is faster than filling."""
    return LIMITS.take(masks.reshape(-1).view(np.uint8), axis=0)


def forbid_on_device(logits: torch.Tensor, masks: torch.Tensor) -> None:
    """The same where numpy does not reach."""
    shifts = torch.arange(WORD_BITS, dtype=torch.int32, device=masks.device)
    bits = (masks[:, :, None] >> shifts) & 1
    forbidden = (bits == 0).flatten(1)
    logits.masked_fill_(forbidden[:, : logits.shape[1]], FORBIDDEN)
