"""The drafter `model`: a small model of the same vocabulary, which the worker runs, drafts greedily. Worker process; no
torch.

The worker provides the model (`needs`), with K/V of each row, so the drafter only requests one token after another, of
all rows together, and stops each row when the model's confidence drops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field

from tenonry.errors import ConfigError
from tenonry.interfaces.plugin import PluginOptions
from tenonry_drafters.base import Drafter, DrafterContext
from tenonry_drafters.models import MODELS, NO_TOKEN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenonry.step import NewRow
    from tenonry_drafters.base import I32

MIB = 1 << 20


class ModelOptions(PluginOptions):
    """`--drafter-option key=value`."""

    model: str = Field(
        "",
        description="Draft model: folder, registered name or hub id, with the vocabulary of "
        "the served model.",
    )
    num_drafts: int = Field(
        7, ge=1, le=15, description="Maximum draft tokens per request and pass."
    )
    min_probability: float = Field(
        0.4,
        ge=0.0,
        le=1.0,
        description="Stop drafting after the first token below this probability. 0 never stops.",
    )
    kv_cache_mib: int = Field(
        1024,
        ge=1,
        le=1 << 20,
        description="Maximum MiB of the draft model's KV cache, for four requests. Requests "
        "that do not fit get no drafts.",
    )


class Text:
    """A row that is guessed for: its tokens, and room for `most` guesses behind them."""

    __slots__ = ("end", "most", "num_given", "row", "tokens")

    def __init__(self, row: int, history: I32, most: int) -> None:
        self.row = row
        self.num_given = len(history)
        self.end = self.num_given
        self.most = most
        self.tokens = np.empty(self.num_given + most, np.int32)
        self.tokens[: self.end] = history

    @property
    def history(self) -> I32:
        """Known and drafted tokens so far."""
        return self.tokens[: self.end]

    @property
    def guess(self) -> I32:
        """Drafted tokens."""
        return self.tokens[self.num_given : self.end]

    def add(self, token_id: int) -> bool:
        """Append a draft token; returns True if there is room for another."""
        self.tokens[self.end] = token_id
        self.end += 1
        return len(self.guess) < self.most


class ModelDrafter(Drafter):
    """Each row is guessed for until `min_probability` ends it; the unlikely token is proposed as well."""

    Options = ModelOptions
    needs: ClassVar[frozenset[str]] = frozenset({MODELS})

    def __init__(self, context: DrafterContext) -> None:
        super().__init__(context)
        given = context.options
        self.options = given if isinstance(given, ModelOptions) else ModelOptions()
        if not self.options.model:
            raise ConfigError(
                "drafter=model: no model is named; add --drafter-option model=FOLDER_OR_NAME, a small one that has the "
                "vocabulary of the model that is served"
            )
        if context.models is None:
            raise ConfigError(
                "drafter=model needs models, and this worker gives a drafter none; use --worker torch"
            )
        kv_cache_bytes = self.options.kv_cache_mib * MIB
        self._model = context.models.open(self.options.model, kv_cache_bytes)

    def enter(self, new: NewRow) -> None:
        self._model.leave(new.row)

    def leave(self, row: int) -> None:
        self._model.leave(row)

    def propose(
        self, rows: Sequence[int], histories: Sequence[I32], most: Sequence[int]
    ) -> Sequence[I32]:
        bound = self.options.num_drafts
        texts = [
            Text(row, history, min(count, bound))
            for row, history, count in zip(rows, histories, most, strict=True)
        ]
        going = [text for text in texts if text.most > 0]
        while going:
            going = self._continued(going)
        return [text.guess for text in texts]

    def _continued(self, texts: list[Text]) -> list[Text]:
        """Draft one more token for each text; returns the texts to continue."""
        found = self._model.next_tokens(
            [text.row for text in texts], [text.history for text in texts]
        )
        going = []
        for text, token_id, probability in zip(
            texts, found.token_ids.tolist(), found.probability.tolist(), strict=True
        ):
            if token_id == NO_TOKEN:
                continue
            has_room = text.add(token_id)
            if has_room and probability >= self.options.min_probability:
                going.append(text)
        return going
