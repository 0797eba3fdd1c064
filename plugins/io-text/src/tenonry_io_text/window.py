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
    """A stream over `decode(ids) -> text`. The window starts with context: tokens whose text was given out already.

    An incomplete character shows as U+FFFD at the end of the text, or, with decoders that drop it, as no text at all.
    """

    __slots__ = ("_context", "_context_text", "_decode", "_silent", "ids")

    def __init__(self, decode: Callable[[list[int]], str], prompt_token_ids: Sequence[int]) -> None:
        self._decode = decode
        self.ids: list[int] = []
        self._context_text = ""
        # the last tokens of the prompt may have no text
        while len(self.ids) < len(prompt_token_ids) and not self._context_text:
            length = 2 * len(self.ids) or SEED_TOKENS
            self.ids = [int(token_id) for token_id in prompt_token_ids[-length:]]
            self._context_text = decode(self.ids)
        self._context = len(self.ids)
        self._silent = 0  # tokens after the context that have added no text

    def feed(self, token_id: int) -> str:
        self.ids.append(int(token_id))
        text = self._decode(self.ids)
        new = text[len(self._context_text) :]
        if not new:
            self._add_silent()
            return ""
        if text.endswith(REPLACEMENT) and len(self.ids) - self._context - self._silent < MAX_HELD:
            return ""
        self._advance()
        return new

    def _add_silent(self) -> None:
        """Keep the token, because it may begin a character, but within a bound: most are skipped special tokens."""
        self._silent += 1
        if self._silent > MAX_HELD:
            del self.ids[self._context]
            self._silent -= 1

    def _advance(self) -> None:
        self.ids = self.ids[self._context :]
        self._context = len(self.ids)
        self._silent = 0
        self._context_text = self._decode(self.ids)

    def flush(self) -> str:
        new = self._decode(self.ids)[len(self._context_text) :]
        if new:
            self._advance()
        return new
