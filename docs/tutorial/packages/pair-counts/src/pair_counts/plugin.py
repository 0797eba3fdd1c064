"""Drafter `pair-counts`: the token that most often followed the last one in the same row. Worker process."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from tenonry.interfaces.plugin import PluginOptions
from tenonry.step import I32
from tenonry_drafters.base import Drafter, DrafterContext


class PairCountsOptions(PluginOptions):
    """Options of `--drafter-option`."""

    least: int = Field(
        default=2, ge=1, description="Occurrences of a pair from which it is a guess."
    )


class PairCounts(Drafter):
    """Counts pairs of neighbours in the row's own tokens."""

    interface_version = 1
    Options = PairCountsOptions

    def __init__(self, context: DrafterContext) -> None:
        super().__init__(context)
        options = context.options
        self.options = options if isinstance(options, PairCountsOptions) else PairCountsOptions()

    def propose(
        self, rows: Sequence[int], histories: Sequence[I32], most: Sequence[int]
    ) -> list[I32]:
        return [self._guess(tokens, count) for tokens, count in zip(histories, most, strict=True)]

    def _guess(self, tokens: I32, count: int) -> I32:
        followers: defaultdict[int, Counter[int]] = defaultdict(Counter)
        for first, second in zip(tokens[:-1].tolist(), tokens[1:].tolist(), strict=True):
            followers[first][second] += 1
        guess: list[int] = []
        last = int(tokens[-1])
        while len(guess) < count and followers[last]:
            last, seen = followers[last].most_common(1)[0]
            if seen < self.options.least:
                break
            guess.append(last)
        return np.array(guess, np.int32)
