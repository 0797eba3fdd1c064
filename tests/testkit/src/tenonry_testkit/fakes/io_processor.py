"""An IO processor without a tokenizer: a text's UTF-8 bytes are its tokens. Front end; torch-free, no files.

Ids 0 to 255 are bytes, 256 is the end of a text, and ids above are special tokens that print as `<257>`.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

import numpy as np

from tenonry.errors import RequestError
from tenonry.interfaces.io_processor import (
    IOProcessor,
    ProcessedPrompt,
    Prompt,
    TextPrompt,
    TokenPrompt,
)
from tenonry.sampling_params import SamplingParams

END_OF_TEXT = 256


class ByteDetokenizer:
    """Converts bytes to text; withholds half characters and possible beginnings of stop strings."""

    def __init__(self, params: SamplingParams) -> None:
        self.stop_reason: str | None = None
        self.consumed = 0
        self._stops = params.stop_strings
        self._include = params.include_stop_str_in_output
        self._skip_special = params.skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def push(self, token_ids: Sequence[int]) -> str:
        self.consumed = 0
        emitted = ""
        for token_id in token_ids:
            if self.stop_reason is not None:
                break
            self.consumed += 1
            self._held += self._piece(int(token_id))
            emitted += self._certain()
        return emitted

    def finish(self) -> str:
        rest = self._held
        if self.stop_reason is None:
            rest += self._decoder.decode(b"", final=True)
        self._held = ""
        return rest

    def _piece(self, token_id: int) -> str:
        if token_id < END_OF_TEXT:
            return self._decoder.decode(bytes([token_id]))
        broken = self._decoder.decode(b"", final=True)  # an incomplete character at the end
        self._decoder.reset()
        return broken if self._skip_special else f"{broken}<{token_id}>"

    def _certain(self) -> str:
        for stop in self._stops:
            at = self._held.find(stop)
            if at >= 0:
                self.stop_reason = stop
                text = self._held[: at + len(stop) * self._include]
                self._held = ""
                return text
        overlaps = [_overlap(self._held, stop) for stop in self._stops]
        keep = max(overlaps, default=0)
        end = len(self._held) - keep
        text = self._held[:end]
        self._held = self._held[end:]
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of `text` that is a prefix of `stop`."""
    longest = min(len(text), len(stop) - 1)
    for length in range(longest, 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


class ByteIOProcessor(IOProcessor):
    """Converts text to bytes and back. `add_special_tokens` has no effect: there is no begin token."""

    def process_prompt(
        self, prompt: Prompt, params: SamplingParams, *, add_special_tokens: bool = True
    ) -> ProcessedPrompt:
        match prompt:
            case TextPrompt(text=text) if text:
                ids = np.array(self.encode(text), np.int32)
            case TokenPrompt(token_ids=ids, text=text) if len(ids):
                pass
            case _:
                raise RequestError(f"the prompt {prompt!r} is empty, or no text", "prompt")
        return ProcessedPrompt(token_ids=ids, text=text, bad_words=self._bad_words(params))

    def _bad_words(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        words = params.bad_words or ()
        return tuple(tuple(self.encode(word)) for word in words)

    def make_detokenizer(
        self, prompt_token_ids: Sequence[int], params: SamplingParams
    ) -> ByteDetokenizer | None:
        return ByteDetokenizer(params) if params.detokenize else None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        detokenizer = ByteDetokenizer(SamplingParams(skip_special_tokens=skip_special_tokens))
        return detokenizer.push(token_ids) + detokenizer.finish()

    def render_chat(self, messages: Sequence[dict[str, Any]], **kwargs: Any) -> str:
        """Render `role: content` lines, followed by an open line for the answer."""
        lines = [
            f"{message.get('role', 'user')}: {_text(message.get('content'))}"
            for message in messages
        ]
        return "\n".join([*lines, "assistant:"])


def _text(content: Any) -> str:
    """Text of a message content: a string, a list of parts, or None."""
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""
