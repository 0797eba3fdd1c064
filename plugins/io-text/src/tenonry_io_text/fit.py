"""Plausibility check of a model's tokenizer, by its ids. Front end, once, before anything is started.

A tokenizer with fewer ids than the embedding has rows is usual: embeddings are padded. One whose plain text produces
ids without a row belongs to another model. Tokens that were added to the tokenizer, such as an image's place, are often
beyond the embedding of a model for text alone: they are harmless until a prompt holds one, which is rejected then.
"""

from __future__ import annotations

from pathlib import Path

from tenonry.errors import ModelError
from tenonry_io_text.codec import Codec

REMEDY = "use the tokenizer that belongs to the model, or name its folder with --tokenizer"


def check_fit(codec: Codec, folder: Path, vocab_size: int) -> None:
    """Raise ModelError if plain text, or its surrounding tokens, have ids beyond the embedding.

    `vocab_size`: rows of the embedding. `folder`: the tokenizer's folder.
    """
    beyond = codec.plain_tokens_from(vocab_size)
    if beyond:
        last = max(beyond)
        raise ModelError(
            f"the tokenizer in {folder} does not fit the model: plain text has ids up to {last} ({beyond[last]!r}), "
            f"and the embedding has {vocab_size} rows; {REMEDY}"
        )
    around = codec.encode("", add_special_tokens=True)
    if around and max(around) >= vocab_size:
        worst = max(around)
        token = codec.token_text(worst)
        raise ModelError(
            f"the tokenizer in {folder} does not fit the model: it puts {token!r}, id {worst}, around every prompt, "
            f"and the embedding has {vocab_size} rows; {REMEDY}"
        )
