"""Two texts as one prompt, as cross-encoders are trained with them. Front end, once per request."""

from __future__ import annotations

import threading
from typing import Any

from tenonry.errors import RequestError

# A tokenizer of transformers keeps its last truncation settings, and several threads use the same one.
JOINING = threading.Lock()


def joined(tokenizer: Any, texts: tuple[str, str], keep: int | None) -> tuple[list[int], int]:
    """(token ids, where the second text begins) as the tokenizer of transformers joins them.

    The second is 0 if the tokenizer has no token types: its model was trained without. `keep`: maximum number of
    tokens; the longer text loses its end, token by token, as with the tokenizer's "longest_first". Raises RequestError
    if that leaves no token of a text.
    """
    cut: dict[str, Any] = {}
    if keep is not None:
        least = int(tokenizer.num_special_tokens_to_add(pair=True)) + len(texts)
        if keep < least:
            raise RequestError(
                f"truncate_prompt_tokens={keep} leaves nothing of one of two texts; give at least {least}",
                "truncate_prompt_tokens",
            )
        cut = {"truncation": "longest_first", "max_length": keep}
    with JOINING:
        encoded = tokenizer(*texts, **cut)
    types = list(encoded.get("token_type_ids", ()))
    return list(encoded["input_ids"]), types.index(1) if 1 in types else 0
