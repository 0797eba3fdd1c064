"""Choosing a token per row: the largest logit, or one drawn from a truncated distribution. Worker process, any device.

Truncation is by threshold, ties included, so it depends on a row's values alone and never on an order of sorting.
"""

from __future__ import annotations

import numpy as np
import torch

CANDIDATES = 1024  # tokens sorted at first; rows whose nucleus is larger are sorted whole
CHUNK = 512  # width of the second level of the cumulative sum
FLOAT16_LIKE = {torch.bfloat16: 0x7F80, torch.float16: 0x7C00}  # bit pattern of +infinity


def greedy(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The first maximum of each row of [N, V], and whether the row holds NaN: i64[N], bool[N]."""
    if logits.device.type == "cpu" and logits.is_contiguous():
        if logits.dtype in FLOAT16_LIKE:
            return _greedy_by_bits(logits)
        if logits.dtype == torch.float32:
            return _greedy_numpy(logits)
    best, ids = logits.max(-1)  # a NaN wins over everything
    return ids, best.isnan()


def _greedy_numpy(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Numpy's argmax is vectorised where torch's is not, and lets NaN win."""
    values = logits.numpy()
    ids = values.argmax(-1)
    return torch.from_numpy(ids), torch.from_numpy(np.isnan(values[np.arange(len(ids)), ids]))


def _greedy_by_bits(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """16-bit floats compared as integers, which is 100 times faster than torch's argmax of them.

    Non-negative floats order like their bit patterns, and every negative one has a negative pattern. NaN patterns lie
    beyond infinity's on both sides. Rows without a non-negative value are rare and go the slow way.
    """
    infinity = FLOAT16_LIKE[logits.dtype]
    patterns = logits.view(torch.int16).numpy()
    ids = patterns.argmax(-1)
    top = patterns[np.arange(len(ids)), ids]
    negative_top = patterns.view(np.uint16).max(-1)
    is_nan = (top > infinity) | (negative_top > infinity + 0x8000)
    below_zero = np.flatnonzero((top < 0) & ~is_nan)
    if len(below_zero):
        ids[below_zero] = logits[torch.from_numpy(below_zero)].float().numpy().argmax(-1)
    return torch.from_numpy(ids), torch.from_numpy(is_nan)


def truncated_weights(
    logits: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """Unnormalised probabilities f32[N, V] of `logits` (already over temperature), 0 where truncated.

    `top_k` i64[N] (0: all), `top_p` f32[N], `min_p` f32[N]. min_p keeps tokens at least that share of the most likely
    one; top_k then keeps the k largest, and top_p the smallest set of those that reaches its share of their sum.
    """
    weights = torch.exp(logits - logits.amax(-1, keepdim=True))
    if bool((min_p > 0).any()):
        weights = torch.where(weights >= min_p[:, None], weights, 0.0)
    wants = (top_k > 0) | (top_p < 1)
    if not bool(wants.any()):
        return weights
    rows = wants.nonzero()[:, 0]
    some = weights if len(rows) == len(weights) else weights[rows]
    limit = _thresholds(some, top_k[rows], top_p[rows])
    kept = torch.where(some >= limit[:, None], some, 0.0)
    if len(rows) == len(weights):
        return kept
    weights[rows] = kept
    return weights


def _thresholds(weights: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The smallest weight that stays, f32[N]; tries the largest `CANDIDATES` before it sorts whole rows."""
    vocab_size = weights.shape[1]
    width = min(vocab_size, max(CANDIDATES, int(top_k.max())))
    limit, is_known = _thresholds_within(weights, width, top_k, top_p)
    if width < vocab_size and not bool(is_known.all()):
        rest = (~is_known).nonzero()[:, 0]
        limit[rest] = _thresholds_within(weights[rest], vocab_size, top_k[rest], top_p[rest])[0]
    return limit


def _thresholds_within(
    weights: torch.Tensor, width: int, top_k: torch.Tensor, top_p: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Thresholds as far as the `width` largest weights tell, and for which rows they do."""
    largest = weights.topk(width, sorted=True).values
    ranks = torch.arange(width, device=weights.device)
    count = torch.where(top_k > 0, top_k, weights.shape[1])
    in_k = ranks < count[:, None]
    mass = torch.where(in_k, largest, 0.0).double()
    total = torch.where(top_k > 0, mass.sum(-1), weights.sum(-1, dtype=torch.float64))
    goal = top_p.double() * total
    before = mass.cumsum(-1) - mass
    stays = in_k & ((before < goal[:, None]) | (ranks == 0) | (top_p >= 1)[:, None])
    limit = torch.where(stays, largest, float("inf")).amin(-1)
    is_known = ((top_k > 0) & (top_k <= width)) | ~stays[:, -1] | (top_p >= 1)
    return limit, is_known | (largest[:, -1] <= 0)


def draw(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The inverse of the cumulative distribution: `weights` f32[N, V] ≥ 0, `uniform` f64[N] in (0, 1) → i64[N].

    Two levels, both summed in float64: over chunks of `CHUNK` tokens, then within one chunk.
    """
    rows, vocab_size = weights.shape
    padded = torch.nn.functional.pad(weights, (0, -vocab_size % CHUNK)).view(rows, -1, CHUNK)
    upper = padded.sum(-1, dtype=torch.float64).cumsum(-1)
    goal = (uniform * upper[:, -1])[:, None]
    chunk = torch.searchsorted(upper, goal, right=True).clamp_(max=upper.shape[1] - 1)
    below = torch.where(chunk > 0, upper.gather(1, (chunk - 1).clamp_min_(0)), 0.0)
    inside = padded.gather(1, chunk[..., None].expand(-1, -1, CHUNK))[:, 0]
    lower = inside.double().cumsum(-1) + below
    within = torch.searchsorted(lower, goal, right=True).clamp_(max=CHUNK - 1)
    ids = (chunk * CHUNK + within)[:, 0].clamp_(max=vocab_size - 1)
    # Rounding at the very end of the sum may point at a token of weight 0; the most likely one stands in.
    is_possible = weights.gather(1, ids[:, None])[:, 0] > 0
    return torch.where(is_possible, ids, weights.argmax(-1))
