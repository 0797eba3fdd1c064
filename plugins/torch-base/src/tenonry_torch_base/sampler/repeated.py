"""Sampling by launches that depend on no value, so that a graph may repeat them. Worker process, any device.

It chooses the tokens that `Sampler` chooses: the same weights, thresholds and random numbers. Rows whose logits a
processor changes, and rows with log-probabilities, are not for it.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
import torch

from tenonry.step import RowFailure
from tenonry_torch_base.sampler.choose import draw, keep, sorted_thresholds
from tenonry_torch_base.sampler.randomness import uniforms
from tenonry_torch_base.sampler.sampler import DEVICE_TILE_ELEMENTS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenonry_torch_base.buffers import StepBuffers
    from tenonry_torch_base.sampler.choose import Thresholds
    from tenonry_torch_base.sampler.columns import SamplingColumns
    from tenonry_torch_base.sampler.processors import SampleStep

GREEDY, TEMPERATURE, TOP_K, TOP_P, MIN_P, UNIFORM = range(6)  # lines of the parameters
PADDING = (1.0, 1.0, 0.0, 1.0, 0.0, 0.5)


class Draws(Enum):
    """Draws that the rows of a step need. A step of the first kind may be sampled as one of the second."""

    GREEDY = 0
    RANDOM = 1  # by any row


def draws_of(columns: SamplingColumns, rows: NDArray[np.int32]) -> Draws | None:
    """Kind of draws of a step; None if it needs the sampler itself."""
    if columns.is_processed[rows].any() or (columns.logprobs[rows] >= 0).any():
        return None
    return Draws.GREEDY if columns.is_greedy[rows].all() else Draws.RANDOM


class DrawRows:
    """Parameters of at most `size` rows, f64[6, size], in memory rewritten by later steps."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.values = torch.tensor(PADDING, dtype=torch.float64).to(device)[:, None].repeat(1, size)

    def fill(self, columns: SamplingColumns, step: SampleStep, buffers: StepBuffers) -> None:
        """Set the parameters of a step; its random numbers are made on the host and copied with them."""
        rows = step.row
        packed = np.empty(self.values.shape)
        packed[:] = np.array(PADDING)[:, None]
        count = len(rows)
        packed[GREEDY, :count] = columns.is_greedy[rows]
        packed[TEMPERATURE, :count] = np.where(
            columns.is_greedy[rows], 1.0, columns.temperature[rows]
        )
        packed[TOP_K, :count] = columns.top_k[rows]
        packed[TOP_P, :count] = columns.top_p[rows]
        packed[MIN_P, :count] = columns.min_p[rows]
        packed[UNIFORM, :count] = uniforms(columns.seed[rows], step.num_output)
        self.values.copy_(buffers.put("graph_draws", packed))


def sampled(
    logits: torch.Tensor,
    values: torch.Tensor,
    kind: Draws,
    thresholds: Thresholds = sorted_thresholds,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token i64[N] and failure i32[N] of each row of `logits` [N, V]; `values` as in `DrawRows`."""
    if kind is Draws.GREEDY:
        best, ids = logits.max(-1)
        return ids, best.isnan().to(torch.int32) * RowFailure.NUMERICAL
    rows, vocab_size = logits.shape
    tile = max(1, DEVICE_TILE_ELEMENTS // vocab_size)
    parts = [
        _tile(logits[begin : begin + tile], values[:, begin : begin + tile], thresholds)
        for begin in range(0, rows, tile)
    ]
    ids, failure = zip(*parts, strict=True)
    return torch.cat(ids), torch.cat(failure)


def _tile(
    logits: torch.Tensor, values: torch.Tensor, thresholds: Thresholds
) -> tuple[torch.Tensor, torch.Tensor]:
    raw = logits.float()
    best, ids = raw.max(-1)
    is_greedy = values[GREEDY] > 0
    is_nan = best.isnan()
    failure = torch.where(best.isneginf(), RowFailure.SAMPLING, 0)
    failure = torch.where(is_nan | best.isposinf(), RowFailure.NUMERICAL, failure)
    failure = torch.where(is_greedy, is_nan * RowFailure.NUMERICAL, failure).to(torch.int32)
    weights = torch.softmax(raw / values[TEMPERATURE, :, None].float(), -1)
    keep(weights, values[MIN_P].float() * weights.amax(-1))
    keep(weights, thresholds(weights, values[TOP_K].long(), values[TOP_P].float()))
    drawn = draw(weights, values[UNIFORM])
    return torch.where(is_greedy | (failure != 0), ids, drawn), failure
