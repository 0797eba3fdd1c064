"""The drafter `ngram`: proposes the tokens that followed an earlier occurrence of the last ones. Worker process; no
torch.

Also known as prompt lookup decoding: output that quotes the prompt, or itself, is drafted by copying. There is no state
by row, so rows may come, go and change at any time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np
from pydantic import Field, model_validator

from tenonry.interfaces.plugin import PluginOptions
from tenonry_drafters.base import Drafter, DrafterContext

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenonry_drafters.base import I32

NOTHING = np.empty(0, np.int32)


class NgramOptions(PluginOptions):
    """`--drafter-option key=value`."""

    min_match: int = Field(
        2, ge=1, le=32, description="Minimum matching tokens at the end of the text."
    )
    max_match: int = Field(
        4, ge=1, le=32, description="Maximum matching tokens. The longest match is used."
    )
    reach: int = Field(
        16384, ge=2, le=1 << 20, description="Number of tokens to search, from the end of the text."
    )

    @model_validator(mode="after")
    def _are_in_order(self) -> Self:
        if self.max_match < self.min_match:
            raise ValueError(
                f"max_match={self.max_match} is less than min_match={self.min_match}; raise the one or lower the other"
            )
        return self


class NgramDrafter(Drafter):
    """The longest match wins, and of equally long ones the latest."""

    Options = NgramOptions

    def __init__(self, context: DrafterContext) -> None:
        super().__init__(context)
        given = context.options
        self.options = given if isinstance(given, NgramOptions) else NgramOptions()

    def propose(
        self, rows: Sequence[int], histories: Sequence[I32], most: Sequence[int]
    ) -> Sequence[I32]:
        return [self._next(tokens, count) for tokens, count in zip(histories, most, strict=True)]

    def _next(self, tokens: I32, count: int) -> I32:
        """Up to `count` tokens behind the best match."""
        options = self.options
        tokens = tokens[-options.reach :]
        if len(tokens) <= options.min_match or count < 1:
            return NOTHING
        end = self._end_of_match(tokens)
        if end is None:
            return NOTHING
        # A period shorter than the draft continues to repeat.
        period = len(tokens) - end
        if period >= count:
            return tokens[end : end + count]
        return np.resize(tokens[end:], count)

    def _end_of_match(self, tokens: I32) -> int | None:
        """End of the match, which is where the draft begins."""
        last = len(tokens) - 1
        places = np.flatnonzero(tokens[:last] == tokens[last])
        length = 1
        # Each round keeps the places that match one token more.
        while len(places) and length < self.options.max_match:
            longer = places[places >= length]
            longer = longer[tokens[longer - length] == tokens[last - length]]
            if not len(longer):
                break
            places = longer
            length += 1
        if not len(places) or length < self.options.min_match:
            return None
        return int(places[-1]) + 1
