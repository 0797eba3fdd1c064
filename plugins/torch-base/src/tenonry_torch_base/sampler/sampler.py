"""The sampler: columns and processors together, with a fast path for plain greedy rows. Worker process, any device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tenonry.step import RowFailure
from tenonry_torch_base.sampler.bad_words import BadWords
from tenonry_torch_base.sampler.choose import (
    Truncation,
    draw,
    greedy,
    sorted_thresholds,
    truncated_weights,
)
from tenonry_torch_base.sampler.columns import SamplingColumns
from tenonry_torch_base.sampler.logprobs import Logprobs, concatenated, logprobs_of
from tenonry_torch_base.sampler.penalties import Penalties
from tenonry_torch_base.sampler.processors import LogitsProcessor, ProcessorContext, SampleStep
from tenonry_torch_base.sampler.randomness import uniforms
from tenonry_torch_base.sampler.token_rules import AllowedTokens, LogitBias, MinTokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tenonry.step import NewRow, SchedulerOutput
    from tenonry_torch_base.sampler.choose import Thresholds

TILE_ELEMENTS = 1 << 19  # logits per tile on the CPU: 2 MiB in float32
DEVICE_TILE_ELEMENTS = 1 << 24  # elsewhere: bounds the memory of sorted rows
IDLE_PATIENCE_S = 0.002  # without it, an engine that only waits for a grammar would spin
# In the order of their application to logits.
BUILT_IN: tuple[type[LogitsProcessor], ...] = (
    AllowedTokens,
    BadWords,
    MinTokens,
    LogitBias,
    Penalties,
)


class Sampled:
    """One token per row of a step, on the device: `token_ids` i64[N], `failure` i32[N] (0, or a RowFailure code).

    `logprobs` belongs to the rows at places `logprob_lines` of the step (None: to no row).
    """

    __slots__ = ("failure", "logprob_lines", "logprobs", "token_ids")

    def __init__(self, token_ids: torch.Tensor, failure: torch.Tensor) -> None:
        self.token_ids = token_ids
        self.failure = failure
        self.logprobs: Logprobs | None = None
        self.logprob_lines: NDArray[np.int64] | None = None


class Sampler:
    """Order of calls: `enter` and `leave` for rows, `sample` once per sampling step.

    `prepare`, with the same rows, may come before the model runs; otherwise `sample` calls it.
    """

    def __init__(
        self,
        context: ProcessorContext,
        engine_seed: int = 0,
        extra: Sequence[type[LogitsProcessor]] = (),
        thresholds: Thresholds = sorted_thresholds,
    ) -> None:
        """`thresholds`: of top-k and top-p on another device than the CPU."""
        self.thresholds = thresholds
        self.context = context
        self.columns = SamplingColumns(context.max_num_seqs, context.vocab_size, engine_seed)
        self.processors = [kind(context) for kind in (*BUILT_IN, *extra)]
        self._ahead = [
            processor
            for processor in self.processors
            if type(processor).prepare is not LogitsProcessor.prepare
        ]
        self._is_prepared = False
        self._is_host = context.device.type == "cpu"

    def enter(self, new: NewRow) -> None:
        """Add a new or returning row; the state of the row's previous request is dropped."""
        self.leave(new.row)
        needed = []
        for place, processor in enumerate(self.processors):
            is_active = bool(processor.enter(new))
            processor.active[new.row] = is_active
            if is_active:
                needed.append(place)
        self.columns.enter(new, needed)

    def compile(self, output: SchedulerOutput) -> list[int]:
        """Requests in the step's `prepare` that may start. A step without rows waits for a moment."""
        if not output.prepare:
            return []
        patience = 0.0 if len(output.row) else IDLE_PATIENCE_S
        ready = set(output.prepare)
        for processor in self.processors:
            ready.intersection_update(processor.compile(output.prepare, patience))
        return list(ready)

    def leave(self, row: int) -> None:
        """A row is gone."""
        if not self.columns.is_processed[row]:
            return
        for processor in self.processors:
            if processor.active[row]:
                processor.leave(row)
                processor.active[row] = False
        self.columns.is_processed[row] = False

    def fitting(self, row: int, length: int, token_ids: NDArray[np.int32]) -> int:
        """Number of leading `token_ids`, drafts after a row's `length` tokens, that could be sampled one by one."""
        if not self.columns.is_processed[row]:
            return len(token_ids)
        count = len(token_ids)
        for processor in self.processors:
            if count and processor.active[row]:
                count = min(count, processor.fitting(row, length, token_ids[:count]))
        return count

    def shutdown(self) -> None:
        """The worker ends."""
        for processor in self.processors:
            processor.shutdown()

    @property
    def prepares(self) -> bool:
        """True if `prepare` has work to do for some row."""
        return any(processor.active.any() for processor in self._ahead)

    def prepare(self, step: SampleStep) -> None:
        """Start the processors' concurrent work, to overlap with the model."""
        self._is_prepared = True
        for processor in self._ahead:
            active = processor.active[step.row]
            if active.any():
                processor.prepare(step.select(active))

    def sample(self, logits: torch.Tensor, step: SampleStep) -> Sampled:
        """Sample from the model's `logits` [N, V]."""
        plain = self.columns.is_plain[step.row]
        if plain.all():
            self._is_prepared = False
            return _greedy(logits)
        if self._ahead and not self._is_prepared:
            self.prepare(step)
        self._is_prepared = False
        if not plain.any():
            every_line = np.arange(len(step.row))
            sampled = self._not_plain(logits, step, every_line)
        else:
            sampled = self._apart(logits, step, plain)
        if self.columns.is_processed[step.row].any():
            self._accept(step, sampled.token_ids)
        return sampled

    def _apart(self, logits: torch.Tensor, step: SampleStep, plain: NDArray[np.bool_]) -> Sampled:
        """Plain rows by argmax, the others with all of their parameters."""
        put = self.context.put
        plain_lines = np.flatnonzero(plain)
        other_lines = np.flatnonzero(~plain)
        first = _greedy(logits[put(plain_lines)])
        second = self._not_plain(logits[put(other_lines)], step.select(~plain), other_lines)
        lines = np.concatenate([plain_lines, other_lines])
        order = put(np.argsort(lines, kind="stable"))
        sampled = Sampled(
            torch.cat([first.token_ids, second.token_ids])[order],
            torch.cat([first.failure, second.failure])[order],
        )
        sampled.logprobs = second.logprobs
        sampled.logprob_lines = second.logprob_lines
        return sampled

    def _not_plain(
        self, logits: torch.Tensor, step: SampleStep, lines: NDArray[np.int64]
    ) -> Sampled:
        """Rows that are not plain; `lines` are their places in the step."""
        sole = self.columns.sole[step.row]
        place = int(sole[0])
        if place >= 0 and (sole == place).all():
            found = self.processors[place].best(logits, step)
            if found is not None:
                ids, best = found
                if self._is_host and np.isfinite(best.numpy()).all():
                    sound = torch.zeros(len(ids), dtype=torch.int32)
                    return Sampled(ids, sound)
                failure = self._failures(best, best.isnan(), step)
                return Sampled(ids, failure)
        return self._in_tiles(logits, step, lines)

    def _in_tiles(
        self, logits: torch.Tensor, step: SampleStep, lines: NDArray[np.int64]
    ) -> Sampled:
        """Sample with all parameters, some rows at a time. On the CPU a few: a tile of float32 logits fits into the
        cache, all rows would not.
        """
        rows, vocab_size = logits.shape
        elements = TILE_ELEMENTS if self._is_host else DEVICE_TILE_ELEMENTS
        tile = max(1, elements // vocab_size)
        parts = []
        for begin in range(0, rows, tile):
            span = slice(begin, begin + tile)
            part = self._tile(logits[span], step.select(span), lines[span])
            parts.append(part)
        return parts[0] if len(parts) == 1 else joined(parts)

    def _tile(self, logits: torch.Tensor, step: SampleStep, lines: NDArray[np.int64]) -> Sampled:
        raw = logits.float()
        is_nan = raw.amax(-1).isnan()  # the maximum is NaN if any element is
        wanted = self.columns.logprobs[step.row]
        asks = wanted >= 0
        values = self._processed(raw, step, is_shared=raw is logits or bool(asks.any()))
        sampled = self._choose(values, step, is_nan)
        if asks.any():
            places = self.context.put(np.flatnonzero(asks))
            mine = raw if asks.all() else raw[places]
            sampled.logprob_lines = lines[asks]
            sampled.logprobs = logprobs_of(mine, sampled.token_ids[places], int(wanted.max()))
        return sampled

    def _processed(self, raw: torch.Tensor, step: SampleStep, *, is_shared: bool) -> torch.Tensor:
        """Apply all processors to the logits, in a separate tensor if others still need the raw ones."""
        if not self.columns.is_processed[step.row].any():
            return raw
        values = raw.clone() if is_shared else raw
        for processor in self.processors:
            active = processor.active[step.row]
            if active.all():
                processor.apply(values, step)
            elif active.any():
                places = self.context.put(np.flatnonzero(active))
                part = values[places]
                processor.apply(part, step.select(active))
                values[places] = part
        return values

    def _accept(self, step: SampleStep, token_ids: torch.Tensor) -> None:
        for processor in self.processors:
            active = processor.active[step.row]
            if active.all():
                processor.accept(step.row, token_ids)
            elif active.any():
                places = self.context.put(np.flatnonzero(active))
                processor.accept(step.row[active], token_ids[places])

    def _choose(self, values: torch.Tensor, step: SampleStep, is_nan: torch.Tensor) -> Sampled:
        ids, _ = greedy(values)
        best = values.gather(1, ids[:, None])[:, 0]
        failure = self._failures(best, is_nan, step)
        random = ~self.columns.is_greedy[step.row]
        if random.any():
            places = self.context.put(np.flatnonzero(random))
            part = values if random.all() else values[places]
            drawn = self._draw(part, step.select(random))
            is_sound = failure[places] == 0
            drawn = torch.where(is_sound, drawn, ids[places])
            ids = ids.index_copy(0, places, drawn)
        return Sampled(ids, failure)

    def _failures(self, best: torch.Tensor, is_nan: torch.Tensor, step: SampleStep) -> torch.Tensor:
        """The failure code of each row, i32[N], by its largest logit."""
        failure = torch.where(torch.isneginf(best), self._no_token_left(step), 0)
        failure = torch.where(is_nan | torch.isposinf(best), RowFailure.NUMERICAL, failure)
        return failure.to(torch.int32)

    def _no_token_left(self, step: SampleStep) -> torch.Tensor | int:
        """Failure code of rows in which every token is forbidden."""
        constrained = self.columns.has_grammar[step.row]
        if not constrained.any():
            return RowFailure.SAMPLING
        codes = np.where(constrained, RowFailure.GRAMMAR, RowFailure.SAMPLING)
        return self.context.put(codes)

    def _draw(self, values: torch.Tensor, step: SampleStep) -> torch.Tensor:
        columns = self.columns
        rows = step.row
        put = self.context.put
        temperature = put(columns.temperature[rows])
        scaled = values / temperature[:, None]
        cut = Truncation(
            columns.top_k[rows].astype(np.int64), columns.top_p[rows], columns.min_p[rows]
        )
        weights = truncated_weights(scaled, cut, put, self.thresholds)
        uniform = uniforms(columns.seed[rows], step.num_output)
        return draw(weights, put(uniform))


def _greedy(logits: torch.Tensor) -> Sampled:
    ids, is_nan = greedy(logits)
    return Sampled(ids, is_nan.to(torch.int32) * RowFailure.NUMERICAL)


def joined(parts: list[Sampled]) -> Sampled:
    """Several samplings, one after another, as one."""
    token_ids = [part.token_ids for part in parts]
    failures = [part.failure for part in parts]
    logprobs = [part.logprobs for part in parts if part.logprobs is not None]
    lines = [part.logprob_lines for part in parts if part.logprob_lines is not None]
    whole = Sampled(torch.cat(token_ids), torch.cat(failures))
    if logprobs:
        whole.logprobs = concatenated(logprobs)
        whole.logprob_lines = np.concatenate(lines)
    return whole
