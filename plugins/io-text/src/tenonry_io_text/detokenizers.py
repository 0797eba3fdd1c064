"""Output tokens to text, one request at a time, as they arrive. Front end, on the hot path: once per token.

`TableDetokenizer` is the common case: a token whose piece is whole costs one dictionary look-up. A stream (`feed`,
`flush`) does not handle stop strings; `tenonry_io_text.stop` adds them to any stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tenonry_io_text.decoders import decode_prefix, replaced
from tenonry_io_text.token_table import TokenTable

SEED_TOKENS = 8  # a character has at most four bytes, so at most three tokens of the prompt can belong to an open one


class TextStream(Protocol):
    """Turns tokens into text piece by piece, never half a character."""

    def feed(self, token_id: int) -> str:
        """The text that is certain after one more token; "" while a character is incomplete."""
        ...

    def flush(self) -> str:
        """Return the text held back, at the end of the output."""
        ...


class TableStream:
    """A stream over a `TokenTable`. The text after any number of tokens equals decoding prompt and output together.

    `_clean`: the next piece can be returned unchanged; nothing is pending, and the text has begun.
    """

    __slots__ = (
        "_borrowed",
        "_clean",
        "_first",
        "_get",
        "_pending",
        "_table",
        "consumed",
        "stop_reason",
    )

    def __init__(self, table: TokenTable, prompt_token_ids: Sequence[int]) -> None:
        self._table = table
        self._get = table.texts.get
        self._first = table.rule.first_differs and all(
            table.token(token_id) is None for token_id in prompt_token_ids
        )
        self._pending = self._open_character(prompt_token_ids)
        self._borrowed = bool(self._pending)
        self._clean = not (self._first or self._pending)
        self.consumed = 0
        self.stop_reason: str | None = None

    def _open_character(self, prompt_token_ids: Sequence[int]) -> bytes:
        """The bytes of a character that the prompt leaves unfinished: a request that continues another one's output."""
        tail = b""
        for token_id in reversed(prompt_token_ids[-SEED_TOKENS:]):
            piece = self._table.piece(token_id)
            if isinstance(piece, bytes):
                tail = piece + tail
            elif piece:
                break
        return decode_prefix(tail, each_byte=self._table.rule.each_byte)[1]

    def feed(self, token_id: int) -> str:
        if self._clean:
            piece = self._get(token_id)
            if piece is not None:
                return piece
        return self._feed(token_id)

    def _feed(self, token_id: int) -> str:
        piece = self._table.piece(token_id)
        if not piece:
            return ""
        if self._first:
            self._first = False
            piece = self._table.first(token_id)
        text = self._join(piece)
        self._clean = not self._pending
        return text

    def _join(self, piece: str | bytes) -> str:
        """The text after a piece that follows the pending bytes."""
        pending = self._pending
        each_byte = self._table.rule.each_byte
        if isinstance(piece, bytes):
            if self._borrowed and not 0x80 <= piece[0] < 0xC0:
                pending = (
                    b""  # the prompt's last character stays incomplete; it is no part of the output
                )
            self._borrowed = False
            text, self._pending = decode_prefix(pending + piece, each_byte=each_byte)
            return text
        self._pending = b""
        if pending and not self._borrowed:
            piece = replaced(pending, each_byte=each_byte) + piece
        self._borrowed = False
        return piece

    def flush(self) -> str:
        pending = self._pending
        self._pending = b""
        self._clean = not self._first
        if not pending or self._borrowed:
            return ""
        return replaced(pending, each_byte=self._table.rule.each_byte)


class TableDetokenizer(TableStream):
    """The kernel's Detokenizer without stop strings, over a table."""

    __slots__ = ()

    def push(self, token_ids: Sequence[int]) -> str:
        if self._clean and len(token_ids) == 1:
            piece = self._get(token_ids[0])
            if piece is not None:
                self.consumed = 1
                return piece
        self.consumed = len(token_ids)
        return "".join([self.feed(token_id) for token_id in token_ids])

    def finish(self) -> str:
        return self.flush()


class StreamDetokenizer:
    """The kernel's Detokenizer without stop strings, over any stream."""

    __slots__ = ("_feed", "_stream", "consumed", "stop_reason")

    def __init__(self, stream: TextStream) -> None:
        self._stream = stream
        self._feed = stream.feed
        self.consumed = 0
        self.stop_reason: str | None = None

    def push(self, token_ids: Sequence[int]) -> str:
        self.consumed = len(token_ids)
        return "".join([self._feed(token_id) for token_id in token_ids])

    def finish(self) -> str:
        return self._stream.flush()
