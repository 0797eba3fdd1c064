"""Requests for every model: prompts of odd lengths, as token ids, and the number of tokens for each."""

from __future__ import annotations

import dataclasses
import random

from parity_zoo.shrink import FIRST_PLAIN_TOKEN, VOCAB_SIZE, WINDOW

MAX_TOKENS = 10
# One token, the window, one more and one less, blocks of 4 and 16 exactly, and several windows.
LENGTHS = (5, 17, 1, 33, WINDOW, WINDOW + 1, 26, 16)
SECOND_LENGTHS = (12, 2, 31, WINDOW - 1)
PREFIX_LENGTH = 24
SUFFIX_LENGTHS = (5, 1, 9, 0)
MAX_MODEL_LEN = 48


@dataclasses.dataclass(frozen=True)
class Prompts:
    """The prompts of one run. `first` and `second` are two batches; all of `shared` begin alike."""

    first: list[list[int]]
    second: list[list[int]]
    shared: list[list[int]]

    @property
    def all(self) -> list[list[int]]:
        """Every prompt, in order."""
        return [*self.first, *self.second, *self.shared]


def make_prompts(seed: int = 0) -> Prompts:
    """The same prompts for the same seed."""
    rng = random.Random(seed)
    prefix = _tokens(rng, PREFIX_LENGTH)
    return Prompts(
        first=[_tokens(rng, length) for length in LENGTHS],
        second=[_tokens(rng, length) for length in SECOND_LENGTHS],
        shared=[prefix + _tokens(rng, length) for length in SUFFIX_LENGTHS],
    )


def _tokens(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(FIRST_PLAIN_TOKEN, VOCAB_SIZE) for _ in range(length)]
