"""Draft models without weights, for drafters: the next token depends on the history. Test process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tenonry.errors import ModelError
from tenonry_drafters.models import NO_TOKEN, NextTokens
from tenonry_testkit.fakes.tokens import mix_int

NAME = "fake"
SURE = 0.9
UNSURE = 0.1
I32 = NDArray[np.int32]


class FakeDraftModel:
    """Every fourth token or so is unlikely. It continues histories of up to `max_len` tokens.

    `asked`: rows of each call; `left`: removed rows.
    """

    def __init__(self, vocab_size: int, max_len: int) -> None:
        self.vocab_size = vocab_size
        self.max_len = max_len
        self.asked: list[list[int]] = []
        self.left: list[int] = []

    def next_tokens(self, rows: Sequence[int], histories: Sequence[I32]) -> NextTokens:
        self.asked.append(list(rows))
        token_ids = np.full(len(rows), NO_TOKEN, np.int32)
        probability = np.zeros(len(rows), np.float32)
        for place, history in enumerate(histories):
            found = self.next_token(history)
            token_ids[place] = found[0]
            probability[place] = found[1]
        return NextTokens(token_ids, probability)

    def next_token(self, history: I32) -> tuple[int, float]:
        """Next token, and its probability."""
        if len(history) > self.max_len:
            return NO_TOKEN, 0.0
        state = 0
        for token_id in history.tolist():
            state = mix_int(state ^ token_id)
        is_sure = state >> 62 != 0
        token_id = state % self.vocab_size
        return token_id, SURE if is_sure else UNSURE

    def leave(self, row: int) -> None:
        self.left.append(row)


class FakeDraftModels:
    """Provides one model, by the name `fake`."""

    def __init__(self, vocab_size: int, max_len: int) -> None:
        self.vocab_size = vocab_size
        self.max_len = max_len
        self.opened: list[FakeDraftModel] = []

    def open(self, name: str, kv_cache_bytes: int) -> FakeDraftModel:
        if name != NAME:
            raise ModelError(f"there is no draft model '{name}', only '{NAME}'")
        model = FakeDraftModel(self.vocab_size, self.max_len)
        self.opened.append(model)
        return model
