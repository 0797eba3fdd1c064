"""Output tokens to text for any decoder: decodes a small window of tokens again with every new one. Front end.

Slower than a table, and needed only for decoders that look at a token's neighbours, and for tokenizers that are written
in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tenonry_io_text.decoders import REPLACEMENT
from tenonry_io_text.detokenizers import SEED_TOKENS

MAX_HELD = 6  # a character has at most four bytes; tokens that form none by then never will


class WindowStream:
    """A stream over `decode(ids) -> text`. The window starts with context: tokens whose text was given out already."""

    __slots__ = ("_context", "_context_text", "_decode", "_ids")

    def __init__(self, decode: Callable[[list[int]], str], prompt_token_ids: Sequence[int]) -> None:
        self._decode = decode
        self._ids = [int(token_id) for token_id in prompt_token_ids[-SEED_TOKENS:]]
        self._context = len(self._ids)
        self._context_text = decode(self._ids) if self._ids else ""

    def feed(self, token_id: int) -> str:
        self._ids.append(int(token_id))
        text = self._decode(self._ids)
        if text.endswith(REPLACEMENT) and len(self._ids) - self._context < MAX_HELD:
            return ""
        new = text[len(self._context_text) :]
        if new:
            self._ids = self._ids[self._context :]
            self._context = len(self._ids)
            self._context_text = self._decode(self._ids)
        elif self._context_text:
            self._ids.pop()  # a token without text is no context for the next one
        else:
            self._context = len(self._ids)  # nor is it a part of a character that still has to come
        return new

    def flush(self) -> str:
        if len(self._ids) == self._context:
            return ""
        new = self._decode(self._ids)[len(self._context_text) :]
        self._context = len(self._ids)
        self._context_text = self._decode(self._ids)
        return new
