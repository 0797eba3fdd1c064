"""The pieces of text that tokens contribute, worked out when a token is first seen. Front end; shared by all requests.

One table per tokenizer and per answer to "skip special tokens?"; it never grows beyond the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tenonry_io_text.decoders import Rule

MAX_TOKEN_ID = 2**32 - 1


class TokenTable:
    """Token id → piece. `texts` holds those that are whole characters: the only thing that a usual token needs."""

    __slots__ = ("_skipped", "_tokenizer", "partial", "rule", "texts")

    def __init__(self, tokenizer: Any, rule: Rule, skipped: Iterable[str] = ()) -> None:
        self._tokenizer = tokenizer
        self.rule = rule
        self._skipped = frozenset(skipped)
        self.texts: dict[int, str] = {}
        self.partial: dict[int, bytes] = {}

    def token(self, token_id: int) -> str | None:
        """The token as the vocabulary spells it; None for a skipped one and for ids that the vocabulary lacks."""
        if not 0 <= token_id <= MAX_TOKEN_ID:
            return None
        token: str | None = self._tokenizer.id_to_token(int(token_id))
        return None if token is None or token in self._skipped else token

    def piece(self, token_id: int) -> str | bytes:
        """Text of the token inside a text: "" if it is skipped or unknown, bytes for a part of a character."""
        token_id = int(token_id)
        text = self.texts.get(token_id)
        if text is not None:
            return text
        return self.partial.get(token_id) or self._work_out(token_id)

    def first(self, token_id: int) -> str | bytes:
        """Text of the token as the first one of a text."""
        token = self.token(token_id)
        return "" if token is None else self.rule.first(token)

    def _work_out(self, token_id: int) -> str | bytes:
        token = self._tokenizer.id_to_token(token_id) if 0 <= token_id <= MAX_TOKEN_ID else None
        if token is None:
            return ""  # not kept: there is no end to ids without a token
        piece = "" if token in self._skipped else self.rule.piece(token)
        if isinstance(piece, bytes):
            self.partial[token_id] = piece
        else:
            self.texts[token_id] = piece
        return piece
