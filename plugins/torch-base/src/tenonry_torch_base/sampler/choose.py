"""Choosing a token per row: the largest logit, or one drawn from a truncated distribution. Worker process, any device.

Truncation is by threshold, ties included, so it depends on a row's values alone and never on an order of sorting. On
the CPU no bit of a row's result depends on the other rows: torch's softmax processes each row separately, and
`row_sums` replaces sums of a single long row that torch would share among threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Put = Callable[[NDArray[np.generic]], torch.Tensor]
    # Of weights [N, V], top-k i64[N] (0: all) and top-p f32[N]: the smallest weight that stays, f32[N]; it waits for no
    # device.
    Thresholds = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

CANDIDATES = 256  # tokens sorted at first; rows whose nucleus is larger are sorted whole
CHUNK = 512  # width of the second level of the cumulative sum
NARROW = 64  # width of the chunks in the search for the largest
FLOAT16_LIKE = {torch.bfloat16: 0x7F80, torch.float16: 0x7C00}  # bit pattern of +infinity


def greedy(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first maximum of each row of [N, V], and True for rows with NaN: i64[N], bool[N]."""
    if logits.device.type == "cpu" and logits.is_contiguous():
        if logits.dtype in FLOAT16_LIKE:
            return _greedy_by_bits(logits)
        if logits.dtype == torch.float32:
            return _greedy_numpy(logits)
    best, ids = logits.max(-1)  # a NaN wins over everything
    return ids, best.isnan()


def _greedy_numpy(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Find maxima by numpy: its argmax is vectorised, unlike torch's, and returns the place of a NaN."""
    values = logits.numpy()
    ids = values.argmax(-1)
    top = values[np.arange(len(ids)), ids]
    return torch.from_numpy(ids), torch.from_numpy(np.isnan(top))


def _greedy_by_bits(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """16-bit floats compared as integers, which is 100 times faster than torch's argmax of them.

    Non-negative floats order like their bit patterns, and every negative one has a negative pattern. NaN patterns lie
    beyond infinity's on both sides. Rows without a non-negative value are rare; their argmax is taken in float32.
    """
    infinity = FLOAT16_LIKE[logits.dtype]
    patterns = logits.view(torch.int16).numpy()
    ids = patterns.argmax(-1)
    top = patterns[np.arange(len(ids)), ids]
    negative_top = patterns.view(np.uint16).max(-1)
    is_nan = (top > infinity) | (negative_top > infinity + 0x8000)
    below_zero = np.flatnonzero((top < 0) & ~is_nan)
    if len(below_zero):
        values = logits[torch.from_numpy(below_zero)].float().numpy()
        ids[below_zero] = values.argmax(-1)
    return torch.from_numpy(ids), torch.from_numpy(is_nan)


class Truncation(NamedTuple):
    """Parameters of N rows on the host, where they decide which operations run: `top_k` i64[N] (0: all), `top_p`
    f32[N], `min_p` f32[N].

    min_p keeps tokens at least that share of the most likely one; top_k then keeps the k largest, and top_p the
    smallest set of those that reaches its share of their sum.
    """

    top_k: NDArray[np.int64]
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]

    def select(self, lines: NDArray[np.intp] | slice) -> Truncation:
        """The same for some of the rows."""
        return Truncation(self.top_k[lines], self.top_p[lines], self.min_p[lines])


def truncated_weights(
    logits: torch.Tensor, cut: Truncation, put: Put, on_device: Thresholds | None = None
) -> torch.Tensor:
    """Unnormalised probabilities f32[N, V] of `logits` (already over temperature), 0 where truncated.

    `put`: copies an array to the device of `logits`. `on_device`: thresholds where that is not the CPU, by
    `sorted_thresholds` if not given; of truncated rows alone. Waits for no device.
    """
    weights = torch.softmax(logits, -1)
    if (cut.min_p > 0).any():
        most_likely = weights.amax(-1)  # [N]
        keep(weights, put(cut.min_p) * most_likely)
    lines = np.flatnonzero((cut.top_k > 0) | (cut.top_p < 1))
    thresholds = on_device or sorted_thresholds

    def limits(some: torch.Tensor, cut: Truncation) -> torch.Tensor:
        if some.device.type == "cpu":
            return _thresholds(some, cut, put)
        return thresholds(some, put(cut.top_k), put(cut.top_p))

    if len(lines) == len(weights):
        keep(weights, limits(weights, cut))
    elif len(lines):
        rows = put(lines)
        limit = weights.new_zeros(len(weights))
        limit[rows] = limits(weights[rows], cut.select(lines))
        keep(weights, limit)
    return weights


def keep(weights: torch.Tensor, limit: torch.Tensor) -> None:
    """Zero weights below a row's limit. The mask consists of floats: mixed types cost the CPU eight times as much."""
    stays = torch.empty_like(weights)
    torch.ge(weights, limit[:, None], out=stays)
    weights.mul_(stays)


def largest(values: torch.Tensor, count: int) -> torch.Tensor:
    """The `count` largest of each row of [N, V], falling.

    If that is few of many, only the chunks with the largest maxima are searched, which must hold them.
    """
    rows, width = values.shape
    if 4 * count * NARROW > width:
        return values.topk(count, sorted=True).values
    chunks = values
    if width % NARROW:
        chunks = functional.pad(values, (0, -width % NARROW))
    chunks = chunks.reshape(rows, -1, NARROW)
    maxima = chunks.amax(-1)  # [N, chunks]
    best = maxima.topk(count, sorted=False).indices
    index = best[..., None].expand(-1, -1, NARROW)
    found = chunks.gather(1, index).view(rows, -1)  # [N, count * NARROW]
    return found.topk(count, sorted=True).values


def _thresholds(weights: torch.Tensor, cut: Truncation, put: Put) -> torch.Tensor:
    """Smallest kept weight, f32[N], on the CPU: of the largest `CANDIDATES` if these suffice, else of sorted rows."""
    vocab_size = weights.shape[1]
    is_nucleus = cut.top_p < 1
    width = max(CANDIDATES if is_nucleus.any() else 1, int(cut.top_k.max()))
    width = min(vocab_size, width)
    candidates = largest(weights, width)
    top_k, top_p = put(cut.top_k), put(cut.top_p)
    limit, is_known = thresholds_among(candidates, weights, top_k, top_p)
    if not bool(is_known.all()):
        rest = (~is_known).nonzero()[:, 0]
        some = weights[rest]
        limit[rest], _ = thresholds_among(_sorted(some), some, top_k[rest], top_p[rest])
    return limit


def _sorted(values: torch.Tensor) -> torch.Tensor:
    """Whole rows, falling. numpy sorts float32 three times as fast as torch does on the CPU."""
    rising = np.sort(-values.numpy(), axis=-1)
    return torch.from_numpy(-rising)


def sorted_thresholds(
    weights: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor
) -> torch.Tensor:
    """Implements `Thresholds` on any device by sorting whole rows."""
    falling = weights.sort(-1, descending=True).values
    limit, _ = thresholds_among(falling, weights, top_k, top_p)
    return torch.where((top_k > 0) | (top_p < 1), limit, 0.0)


def thresholds_among(
    falling: torch.Tensor, weights: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Thresholds [N] from the largest weights `falling` [N, n], and the rows for which they suffice, bool[N]."""
    width = falling.shape[1]
    vocab_size = weights.shape[1]
    has_top_k = top_k > 0
    has_no_top_p = top_p >= 1

    # All below are [N, n]: the mass of the candidates in the top k, and the mass before each of them.
    ranks = torch.arange(width, device=weights.device)
    count = torch.where(has_top_k, top_k, vocab_size)
    in_k = ranks < count[:, None]
    mass = torch.where(in_k, falling, 0.0).double()
    running = mass.cumsum(-1)
    before = running - mass

    total = torch.where(
        has_top_k,
        running[
            :, -1
        ],  # not a sum, whose order would depend on `n`, and so on the other rows' top_k
        row_sums(weights).double(),
    )
    goal = top_p.double() * total
    is_needed = before < goal[:, None]
    in_p = is_needed | (ranks == 0) | has_no_top_p[:, None]
    stays = in_k & in_p
    limit = torch.where(stays, falling, float("inf")).amin(-1)

    # The candidates suffice if they hold the top k, if the last one is excluded, or if there are no others.
    holds_top_k = has_top_k & (top_k <= width)
    is_cut = ~stays[:, -1]
    has_all = (falling[:, -1] <= 0) | (width == vocab_size)
    is_known = holds_top_k | is_cut | has_no_top_p | has_all
    return limit, is_known


def row_sums(values: torch.Tensor) -> torch.Tensor:
    """f32[N] of [N, V], added in an order that depends on V alone."""
    return _chunk_sums(values).sum(-1)


def _chunk_sums(values: torch.Tensor) -> torch.Tensor:
    """The sums of every `CHUNK` values of a row, [N, chunks]; the last one may be of fewer."""
    width = values.shape[1]
    main = width - width % CHUNK
    sums = values[:, :main].unflatten(1, (main // CHUNK, CHUNK)).sum(-1)
    if main < width:
        last = values[:, main:].sum(-1, keepdim=True)
        sums = torch.cat([sums, last], 1)
    return sums


def draw(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The inverse of the cumulative distribution: `weights` f32[N, V] ≥ 0, `uniform` f64[N] in (0, 1) → i64[N].

    Two levels, both accumulated in float64: over chunks of `CHUNK` tokens, then within one chunk.
    """
    vocab_size = weights.shape[1]

    # The chunk: sums [N, chunks], goal and chunk [N, 1].
    sums = _chunk_sums(weights)
    upper = sums.double().cumsum(-1)
    goal = (uniform * upper[:, -1])[:, None]
    chunk = _first_beyond(upper, sums, goal)

    # The token in it: inside [N, CHUNK], zero beyond the vocabulary.
    previous = (chunk - 1).clamp_min_(0)
    below = torch.where(chunk > 0, upper.gather(1, previous), 0.0)
    places = chunk * CHUNK + torch.arange(CHUNK, device=weights.device)
    inside = weights.gather(1, places.clamp(max=vocab_size - 1))
    inside = inside * (places < vocab_size)
    running = inside.double().cumsum(-1) + below
    within = _first_beyond(running, inside, goal)
    token_ids = (chunk * CHUNK + within)[:, 0]
    return token_ids.clamp_(max=vocab_size - 1)


def _first_beyond(sums: torch.Tensor, parts: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
    """First place [N, 1] where the running `sums` exceed `goal`; at most the last nonzero part, despite rounding at the
    end of a sum.
    """
    places = torch.arange(parts.shape[1], device=parts.device)
    last = torch.where(parts > 0, places, 0).amax(-1, keepdim=True)
    found = torch.searchsorted(sums, goal, right=True)
    return torch.minimum(found, last)
