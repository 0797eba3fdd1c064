"""The bytes for which each token stands, from the text of a tokenizer. Pure.

xgrammar reads vocabularies itself, but takes a special token for the text of its name: in a JSON string it would allow
the mark that begins a turn. Here such tokens stand for nothing, and are never allowed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from tenonry_grammars.base import GrammarError
from tenonry_grammars.special import special_tokens

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "\u2581"


def token_bytes(tokenizer_json: str, vocab_size: int) -> list[bytes]:
    """For each logit of the model the bytes of its token; none for an id without text.

    Raises GrammarError for a tokenizer whose tokens do not stand for bytes of their own.
    """
    try:
        data = json.loads(tokenizer_json)
        vocabulary = list(_vocabulary(data["model"]))
        added = data.get("added_tokens") or []
        to_bytes = _reader(data)
        found = [b""] * vocab_size
        for token, token_id in vocabulary:
            if token_id < vocab_size:
                found[token_id] = to_bytes(token)
        special_ids = special_tokens(added)
        for token in added:
            name = token["content"]
            if token["id"] < vocab_size:
                found[token["id"]] = b"" if name in special_ids else name.encode()
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, GrammarError):
            raise
        raise GrammarError(
            f"xgrammar cannot read the tokenizer: {type(error).__name__}: {error}"
        ) from None
    return found


def _vocabulary(model: Any) -> Iterator[tuple[str, int]]:
    """Tokens and their ids: a mapping, or for Unigram a list in the order of the ids."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        yield from vocabulary.items()
        return
    for token_id, (token, _) in enumerate(vocabulary):
        yield token, token_id


def _reader(data: dict[str, Any]) -> Callable[[str], bytes]:
    """Function from a token of the vocabulary to its bytes, according to the tokenizer's decoder."""
    kinds = set(_kinds(data.get("decoder")))
    if "ByteLevel" in kinds or "ByteLevel" in set(_kinds(data.get("pre_tokenizer"))):
        return _from_letters
    if kinds & {"ByteFallback", "Metaspace", "Replace"}:
        return _from_pieces
    named = ", ".join(sorted(kinds)) or "none"
    raise GrammarError(
        f"xgrammar's backend reads tokenizers of bytes and of pieces with ▁, but the decoder of this one is {named}; "
        "start with --grammar-backend llguidance"
    )


def _kinds(part: Any) -> Iterator[str]:
    """The types of a decoder or pre-tokenizer, and of those in a sequence."""
    if not part:
        return
    for inner in (*part.get("decoders", ()), *part.get("pretokenizers", ())):
        yield from _kinds(inner)
    if part["type"] != "Sequence":
        yield part["type"]


def _letters() -> dict[str, int]:
    """The letter that stands for each byte in the vocabularies of GPT-2's kind."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    letters |= {chr(256 + place): byte for place, byte in enumerate(others)}
    return letters


_LETTERS = _letters()


def _from_letters(token: str) -> bytes:
    try:
        return bytes(_LETTERS[letter] for letter in token)
    except KeyError:  # it was added as text
        return token.encode()


def _from_pieces(token: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(token)
    if byte:
        return bytes([int(byte[1], 16)])
    return token.replace(_SPACE, " ").encode()
