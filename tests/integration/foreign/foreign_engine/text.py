"""An IO processor whose tokens are the bytes of Latin-1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tenonry.errors import RequestError
from tenonry.interfaces.io_processor import (
    Detokenizer,
    IOProcessor,
    ProcessedPrompt,
    Prompt,
    TextPrompt,
)
from tenonry.sampling_params import SamplingParams


class Letters:
    """The detokenizer: each token is a letter."""

    stop_reason = None
    consumed = 0

    def push(self, token_ids: Sequence[int]) -> str:
        self.consumed = len(token_ids)
        return bytes(token_ids).decode("latin-1")

    def finish(self) -> str:
        return ""


class ByteProcessor(IOProcessor):
    """Encodes texts as their bytes."""

    def process_prompt(
        self, prompt: Prompt, params: SamplingParams, *, add_special_tokens: bool = True
    ) -> ProcessedPrompt:
        if not isinstance(prompt, TextPrompt):
            raise RequestError("the prompt must be a text", "prompt")
        ids = np.array(self.encode(prompt.text), np.int32)
        return ProcessedPrompt(token_ids=ids, text=prompt.text)

    def make_detokenizer(
        self, prompt_token_ids: Sequence[int], params: SamplingParams
    ) -> Detokenizer | None:
        return Letters()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode("latin-1"))

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return bytes(token_ids).decode("latin-1")
