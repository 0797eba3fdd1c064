"""Rules about single tokens: allowed ids, logit bias, and stop ids held back until `min_tokens`. Worker process.

Rules are kept as flat (row, token) pairs in columns, rebuilt only when a row with rules enters or leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from tenonry_torch_base.sampler.penalties import RowTables, grown
from tenonry_torch_base.sampler.processors import LogitsProcessor, ProcessorContext, SampleStep

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenonry.step import NewRow

FORBIDDEN = float("-inf")


class AllowedTokens(LogitsProcessor):
    """`allowed_token_ids`: everything else is forbidden. One line of booleans per row with the parameter."""

    name: ClassVar[str] = "allowed_token_ids"

    def __init__(self, context: ProcessorContext) -> None:
        super().__init__(context)
        self._tables = RowTables(context.max_num_seqs)
        self._forbidden = torch.zeros(
            0, context.vocab_size, dtype=torch.bool, device=context.device
        )

    def enter(self, new: NewRow) -> bool:
        allowed = new.sampling.allowed_token_ids
        if allowed is None:
            return False
        line = self._tables.take(new.row)
        self._forbidden = grown(self._forbidden, self._tables.num_lines)
        ids = np.array(allowed, np.int64)
        known = ids[ids < self.context.vocab_size]
        self._forbidden[line].fill_(True).index_fill_(0, self.context.put(known), False)
        return True

    def leave(self, row: int) -> None:
        self._tables.give_back(row)

    def apply(self, logits: torch.Tensor, step: SampleStep) -> None:
        lines = self.context.put(self._tables.line[step.row])
        logits.masked_fill_(self._forbidden[lines], FORBIDDEN)


class PairRules(LogitsProcessor):
    """Rules as pairs: `_row`, `_token`, `_value` of all rows together."""

    def __init__(self, context: ProcessorContext) -> None:
        super().__init__(context)
        self._of_row: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._is_stale = True

    def add(self, row: int, tokens: list[int], values: list[float]) -> bool:
        """Store the rules of a row, without ids beyond the vocabulary. Returns True if any remains."""
        kept = [
            (token, value)
            for token, value in zip(tokens, values, strict=True)
            if token < self.context.vocab_size
        ]
        if not kept:
            return False
        ids, amounts = zip(*kept, strict=True)
        self._of_row[row] = (np.array(ids, np.int64), np.array(amounts, np.float32))
        self._is_stale = True
        return True

    def leave(self, row: int) -> None:
        if self._of_row.pop(row, None) is not None:
            self._is_stale = True

    def _rebuild(self) -> None:
        self._is_stale = False
        rows = np.array(list(self._of_row), np.int64)
        tokens = [ids for ids, _ in self._of_row.values()]
        amounts = [amounts for _, amounts in self._of_row.values()]
        counts = [len(ids) for ids in tokens]
        self._row = np.repeat(rows, np.array(counts, np.int64))
        self._token = np.concatenate([np.empty(0, np.int64), *tokens])
        self._value = np.concatenate([np.empty(0, np.float32), *amounts])

    def pairs(self, step: SampleStep) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(place in the step or −1, index of the pair) for every pair: the affected lines of the logits."""
        if self._is_stale:
            self._rebuild()
        lines = step.place_of(self._row, self.context.max_num_seqs)
        return lines, np.flatnonzero(lines >= 0)

    def indices(
        self, lines: NDArray[np.int64], which: NDArray[np.int64]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Indices of the pairs `which` in the logits: lines and tokens."""
        put = self.context.put
        return put(lines[which]), put(self._token[which])


class LogitBias(PairRules):
    """`logit_bias`: added to the logit."""

    name: ClassVar[str] = "logit_bias"

    def enter(self, new: NewRow) -> bool:
        bias = new.sampling.logit_bias
        if not bias:
            return False
        amounts = [float(value) for value in bias.values()]
        return self.add(new.row, list(bias), amounts)

    def apply(self, logits: torch.Tensor, step: SampleStep) -> None:
        lines, which = self.pairs(step)
        where = self.indices(lines, which)
        amounts = self.context.put(self._value[which])
        logits.index_put_(where, amounts, accumulate=True)


class MinTokens(PairRules):
    """`min_tokens`: the ids that would end the request are forbidden before; the value of a pair is the limit."""

    name: ClassVar[str] = "min_tokens"

    def enter(self, new: NewRow) -> bool:
        limit = new.sampling.min_tokens
        stops = list(new.stop_token_ids)
        if limit <= new.num_output or not stops:
            return False
        return self.add(new.row, stops, [float(limit)] * len(stops))

    def apply(self, logits: torch.Tensor, step: SampleStep) -> None:
        lines, which = self.pairs(step)
        is_early = step.num_output[lines[which]] < self._value[which]
        where = self.indices(lines, which[is_early])
        logits[where] = FORBIDDEN
