"""The sampler: columns and processors together, with a fast path for plain greedy rows. Worker process, any device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tenonry.step import RowFailure
from tenonry_worker_torch.sampler.bad_words import BadWords
from tenonry_worker_torch.sampler.choose import draw, greedy, truncated_weights
from tenonry_worker_torch.sampler.columns import SamplingColumns
from tenonry_worker_torch.sampler.logprobs import Logprobs, logprobs_of
from tenonry_worker_torch.sampler.penalties import Penalties
from tenonry_worker_torch.sampler.processors import LogitsProcessor, ProcessorContext, SampleStep
from tenonry_worker_torch.sampler.randomness import uniforms
from tenonry_worker_torch.sampler.token_rules import AllowedTokens, LogitBias, MinTokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tenonry.step import NewRow

# In the order in which they change the logits.
BUILT_IN: tuple[type[LogitsProcessor], ...] = (AllowedTokens, BadWords, MinTokens, LogitBias, Penalties)


class Sampled:
    """One token per row of a step, on the device: `token_ids` i64[N], `failure` i32[N] (0, or a RowFailure code).

    `logprobs` belongs to the rows at places `logprob_lines` of the step (None: to nobody).
    """

    __slots__ = ("failure", "logprob_lines", "logprobs", "token_ids")

    def __init__(self, token_ids: torch.Tensor, failure: torch.Tensor) -> None:
        self.token_ids, self.failure = token_ids, failure
        self.logprobs: Logprobs | None = None
        self.logprob_lines: NDArray[np.int64] | None = None


class Sampler:
    """Order of calls: `enter` and `leave` as rows come and go, `sample` once per step that samples."""

    def __init__(
        self, context: ProcessorContext, engine_seed: int = 0, extra: Sequence[type[LogitsProcessor]] = ()
    ) -> None:
        self.context = context
        self.columns = SamplingColumns(context.max_num_seqs, context.vocab_size, engine_seed)
        self.processors = [kind(context) for kind in (*BUILT_IN, *extra)]

    def enter(self, new: NewRow) -> None:
        """A row starts or comes back; whatever its index meant before is forgotten."""
        self.leave(new.row)
        for processor in self.processors:
            processor.active[new.row] = processor.enter(new)
        is_processed = any(bool(processor.active[new.row]) for processor in self.processors)
        self.columns.enter(new, is_processed=is_processed)

    def leave(self, row: int) -> None:
        """A row is gone."""
        if self.columns.is_processed[row]:
            for processor in self.processors:
                if processor.active[row]:
                    processor.leave(row)
                    processor.active[row] = False
            self.columns.is_processed[row] = False

    def sample(self, logits: torch.Tensor, step: SampleStep) -> Sampled:
        """`logits` [N, V] as the model gave them; they may be overwritten."""
        columns = self.columns
        if columns.is_plain[step.row].all():
            ids, is_nan = greedy(logits)
            return Sampled(ids, is_nan.to(torch.int32) * RowFailure.NUMERICAL)
        raw = logits.float()
        is_nan = raw.amax(-1).isnan()  # the maximum is NaN if any element is
        wanted = columns.logprobs[step.row]
        values = self._processed(raw, step)
        sampled = self._choose(values, step, is_nan)
        if (wanted >= 0).any():
            lines = np.flatnonzero(wanted >= 0)
            places = torch.as_tensor(lines, device=raw.device)
            sampled.logprob_lines = lines
            sampled.logprobs = logprobs_of(logits[places], sampled.token_ids[places], int(wanted.max()))
        if columns.is_processed[step.row].any():
            self._accept(step, sampled.token_ids)
        return sampled

    def _processed(self, raw: torch.Tensor, step: SampleStep) -> torch.Tensor:
        """The logits after all processors, in a tensor of their own wherever something changes."""
        if not self.columns.is_processed[step.row].any():
            return raw
        values = raw.clone()
        for processor in self.processors:
            active = processor.active[step.row]
            if active.all():
                processor.apply(values, step)
            elif active.any():
                lines = torch.as_tensor(np.flatnonzero(active), device=values.device)
                part = values[lines]
                processor.apply(part, step.select(active))
                values[lines] = part
        return values

    def _accept(self, step: SampleStep, token_ids: torch.Tensor) -> None:
        for processor in self.processors:
            active = processor.active[step.row]
            if active.any():
                lines = torch.as_tensor(np.flatnonzero(active), device=token_ids.device)
                processor.accept(step.row[active], token_ids[lines])

    def _choose(self, values: torch.Tensor, step: SampleStep, is_nan: torch.Tensor) -> Sampled:
        ids, _ = greedy(values)
        best = values.gather(1, ids[:, None])[:, 0]
        failure = torch.where(torch.isneginf(best), RowFailure.SAMPLING, 0)
        failure = torch.where(is_nan | torch.isposinf(best), RowFailure.NUMERICAL, failure).to(torch.int32)
        random = ~self.columns.is_greedy[step.row]
        if random.any():
            lines = torch.as_tensor(np.flatnonzero(random), device=values.device)
            part = values if len(lines) == len(ids) else values[lines]
            drawn = self._draw(part, step.select(random))
            ids = ids.index_copy(0, lines, torch.where(failure[lines] == 0, drawn, ids[lines]))
        return Sampled(ids, failure)

    def _draw(self, values: torch.Tensor, step: SampleStep) -> torch.Tensor:
        columns, rows = self.columns, step.row

        def put(array: NDArray[np.generic]) -> torch.Tensor:
            return torch.as_tensor(array, device=values.device)

        scaled = values / put(columns.temperature[rows])[:, None]
        weights = truncated_weights(
            scaled, put(columns.top_k[rows].astype(np.int64)), put(columns.top_p[rows]), put(columns.min_p[rows])
        )
        weights = torch.nan_to_num(weights, nan=0.0)  # rows that fail; their token is never used
        return draw(weights, put(uniforms(columns.seed[rows], step.num_output)))
