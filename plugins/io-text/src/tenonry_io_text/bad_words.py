"""Words that must not be generated, as sequences of token ids. Front end, only for requests that use them."""

from __future__ import annotations

from collections.abc import Sequence

from tenonry.errors import RequestError
from tenonry_io_text.codec import Codec


def bad_word_ids(
    words: Sequence[str] | str, codec: Codec, vocab_size: int
) -> tuple[tuple[int, ...], ...]:
    """Token ids of each word at the start of a text, and after a space if they differ.

    A word that starts a text and one inside a sentence are often different tokens; both are banned. The form after a
    space counts only if it is as long and begins differently: otherwise the space is a token of its own, and the first
    form follows it. Raises RequestError for a word without tokens, or with one that the model lacks.
    """
    found: dict[tuple[int, ...], None] = {}
    for word in [words] if isinstance(words, str) else words:
        text = word.lstrip()
        bare = tuple(codec.encode(text, add_special_tokens=False)) if text else ()
        if not bare:
            raise RequestError(f"bad_words holds {word!r}, which has no tokens", "bad_words")
        spaced = tuple(codec.encode(f" {text}", add_special_tokens=False))
        forms = [bare, spaced] if len(spaced) == len(bare) and spaced[0] != bare[0] else [bare]
        for form in forms:
            if max(form) >= vocab_size:
                raise RequestError(
                    f"bad_words holds {word!r}, whose token {max(form)} is outside the vocabulary of {vocab_size}",
                    "bad_words",
                )
            found[form] = None
    return tuple(found)
