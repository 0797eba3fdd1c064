"""Cuts a prompt to its beginning, as encoders are trained with texts that are too long. Front end, once per request."""

from __future__ import annotations

import numpy as np

from tenonry.errors import RequestError
from tenonry.step import I32


def beginning(whole: I32, plain: I32, keep: int) -> I32:
    """`keep` tokens of `whole`: its first ones, and after them the tokens that the tokenizer appends to a text.

    `plain`: the tokens of the text alone. Raises RequestError if no token of the text would be left.
    """
    added = len(whole) - len(plain)
    if not 0 <= added < keep:
        raise RequestError(
            f"truncate_prompt_tokens={keep} leaves nothing of the text, to which the tokenizer adds {max(added, 0)} "
            "tokens; give more",
            "truncate_prompt_tokens",
        )
    for front in range(added + 1):
        if np.array_equal(whole[front : front + len(plain)], plain):
            behind = added - front
            return np.concatenate([whole[: keep - behind], whole[len(whole) - behind :]])
    raise RequestError(
        "truncate_prompt_tokens: this tokenizer changes a text beside its own special tokens, so it cannot be cut; "
        "shorten the text, or give token ids",
        "truncate_prompt_tokens",
    )
