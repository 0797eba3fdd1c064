"""A loaded tokenizer behind one interface: text to ids, ids to text, and streams of output tokens into text. Front end.

Two kinds: tokenizers of the Rust library (nearly all models), and tokenizers that transformers implements in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from tenonry.errors import RequestError
from tenonry_io_text.decoders import rule_for
from tenonry_io_text.detokenizers import StreamDetokenizer, TableDetokenizer, TextStream
from tenonry_io_text.stop import StopDetokenizer
from tenonry_io_text.token_table import TokenTable
from tenonry_io_text.window import WindowStream


class Codec(Protocol):
    """Tokenizer interface of the processor. May be called from several threads."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text; `add_special_tokens` adds the tokenizer's surrounding tokens, such as BOS."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Text of token ids; ids that the vocabulary lacks are nothing. Raises RequestError for a negative id."""
        ...

    def stream(self, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool) -> TextStream:
        """A stream that continues the text of a prompt."""
        ...

    def token_text(self, token_id: int) -> str:
        """Text of one token inside a text: leading space kept, U+FFFD for a part of a character."""
        ...

    def token_bytes(self, token_id: int, *, skip_special_tokens: bool) -> bytes:
        """UTF-8 bytes of one token inside a text: leading space kept, perhaps a part of a character."""
        ...

    def plain_tokens_from(self, token_id: int) -> dict[int, str]:
        """Id → token, for ids from `token_id` on that plain text may produce; excludes tokens that were added later."""
        ...


class FastCodec:
    """Codec of a `tokenizers.Tokenizer`; calls its batch functions, which release the interpreter lock."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        rule = rule_for(tokenizer.decoder)
        special = [
            token.content
            for token in tokenizer.get_added_tokens_decoder().values()
            if token.special
        ]
        # two tables: with special tokens as text, and without
        self.tables = (
            (TokenTable(tokenizer, rule), TokenTable(tokenizer, rule, special)) if rule else None
        )

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        try:
            (encoding,) = self.tokenizer.encode_batch_fast(
                [text], add_special_tokens=add_special_tokens
            )
        except TypeError:  # the library's error for a string that has no UTF-8 form
            raise _not_unicode(text) from None
        ids: list[int] = encoding.ids
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        ids = [int(token_id) for token_id in token_ids]
        text: str
        try:
            (text,) = self.tokenizer.decode_batch([ids], skip_special_tokens=skip_special_tokens)
        except OverflowError:
            raise _not_an_id(ids) from None
        return text

    def stream(self, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool) -> TextStream:
        if self.tables is not None:
            return TableDetokenizer(self.tables[skip_special_tokens], prompt_token_ids)
        return WindowStream(
            partial(self.decode, skip_special_tokens=skip_special_tokens), prompt_token_ids
        )

    def token_text(self, token_id: int) -> str:
        if self.tables is None:
            return self.decode([token_id], skip_special_tokens=False)
        piece = self.tables[False].piece(token_id)
        return piece if isinstance(piece, str) else piece.decode(errors="replace")

    def token_bytes(self, token_id: int, *, skip_special_tokens: bool) -> bytes:
        if self.tables is None:
            text = self.decode([token_id], skip_special_tokens=skip_special_tokens)
            return text.encode(errors="replace")
        piece = self.tables[skip_special_tokens].piece(token_id)
        return piece.encode() if isinstance(piece, str) else piece

    def plain_tokens_from(self, token_id: int) -> dict[int, str]:
        if self.tokenizer.get_vocab_size(with_added_tokens=False) <= token_id:
            return {}  # without gaps in the ids, which are left to the check of each prompt
        plain = self.tokenizer.get_vocab(with_added_tokens=False)
        added = self.tokenizer.get_added_tokens_decoder()
        return {at: token for token, at in plain.items() if at >= token_id and at not in added}


class SlowCodec:
    """Codec of a tokenizer of transformers that is written in Python."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        try:
            return list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens))
        except UnicodeEncodeError:
            raise _not_unicode(text) from None

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        size = len(self.tokenizer)
        ids = [int(token_id) for token_id in token_ids]
        if any(token_id < 0 for token_id in ids):
            raise _not_an_id(ids)
        known = [token_id for token_id in ids if token_id < size]
        return str(
            self.tokenizer.decode(
                known, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
            )
        )

    def stream(self, prompt_token_ids: Sequence[int], *, skip_special_tokens: bool) -> TextStream:
        return WindowStream(
            partial(self.decode, skip_special_tokens=skip_special_tokens), prompt_token_ids
        )

    def token_text(self, token_id: int) -> str:
        return self.decode([token_id], skip_special_tokens=False)

    def token_bytes(self, token_id: int, *, skip_special_tokens: bool) -> bytes:
        text = self.decode([token_id], skip_special_tokens=skip_special_tokens)
        return text.encode(errors="replace")

    def plain_tokens_from(self, token_id: int) -> dict[int, str]:
        beyond = list(range(token_id, self.tokenizer.vocab_size))
        tokens = self.tokenizer.convert_ids_to_tokens(beyond)
        added = self.tokenizer.added_tokens_decoder
        return {at: str(token) for at, token in zip(beyond, tokens, strict=True) if at not in added}


def make_detokenizer(
    stream: TextStream, stop_strings: Sequence[str], *, include: bool, min_tokens: int
) -> TableDetokenizer | StreamDetokenizer | StopDetokenizer:
    """The leanest detokenizer for a request: only requests with stop strings pay for them."""
    if stop_strings:
        return StopDetokenizer(stream, stop_strings, include=include, min_tokens=min_tokens)
    return stream if isinstance(stream, TableDetokenizer) else StreamDetokenizer(stream)


def check_unicode(text: str) -> None:
    """Raises RequestError for a string that has no UTF-8 form."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _not_unicode(text) from None


def _not_unicode(text: str) -> RequestError:
    at = next((index for index, char in enumerate(text) if "\ud800" <= char <= "\udfff"), 0)
    return RequestError(
        f"character {at} of the text is the lone surrogate {text[at]!r}, which is no Unicode text",
        "prompt",
    )


def _not_an_id(ids: list[int]) -> RequestError:
    bad = next(token_id for token_id in ids if not 0 <= token_id < 2**32)
    return RequestError(
        f"token id {bad} is out of bounds: an id is 0 or more, and below the vocabulary size",
        "tokens",
    )
