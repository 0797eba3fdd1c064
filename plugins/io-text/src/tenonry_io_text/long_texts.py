"""Long texts of a server's clients: tokenised in helper processes, within bounds of time and memory. Front end.

Other clients tokenise in place: a single caller delays no others.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tenonry.errors import ModelError, RequestError
from tenonry_helper_pool.client import has_client
from tenonry_helper_pool.pool import HelperPool, HelperUnavailable, LimitExceeded, Limits, Workers
from tenonry_helper_pool.stats import HelperStats
from tenonry_helper_pool.turns import Report, default_size
from tenonry_io_text.codec import Codec, FastCodec, check_unicode
from tenonry_io_text.text_process import ADD, ADD_NOT

HELPER = "tokenize"
# Texts above these are long: about 0.1 s of a tokenizer in Rust, and of one in Python.
LONG_CHARS = 1 << 18
LONG_CHARS_IN_PYTHON = 1 << 15
MEMORY_BYTES = 4 << 30
MIN_SLOTS = 3  # two for texts that are found to be long
SHORT_FACTOR = 4  # texts above this multiple of `LONG_CHARS` are expected to take long
NICE = 5


class LongTexts:
    """Helper processes for the tokenizer in `folder`, started with the first long text. `seconds`: limit of processor
    time per text.
    """

    def __init__(self, codec: Codec, folder: Path, seconds: float, report: Report | None) -> None:
        self._codec = codec
        self._seconds = seconds
        is_fast = isinstance(codec, FastCodec)
        self._long_chars = LONG_CHARS if is_fast else LONG_CHARS_IN_PYTHON
        limits = Limits(seconds=seconds, memory_bytes=MEMORY_BYTES, nice=NICE)
        handler = "tenonry_io_text.text_process:TextHandler"
        self.pool = HelperPool(
            HELPER,
            Workers("texts", handler, str(folder).encode(), limits),
            short_cost=SHORT_FACTOR * self._long_chars,
            size=max(MIN_SLOTS, default_size()),
            report=report,
        )
        if report is not None:
            report(HelperStats(helper=HELPER))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int] | NDArray[np.int64]:
        """Token ids of a text, of a long one as an array: a list of millions would hold the interpreter's lock.

        Raises RequestError for a text that takes too much, and QueueFullError.
        """
        if len(text) <= self._long_chars or not has_client():
            return self._codec.encode(text, add_special_tokens=add_special_tokens)
        check_unicode(text)
        begin = ADD if add_special_tokens else ADD_NOT
        try:
            answer = self.pool.run(begin, text.encode(), cost=len(text))
        except LimitExceeded:
            raise RequestError(
                f"the text of {len(text)} characters was not tokenised within {self._seconds:g} s of processor time, "
                "or took too much memory; shorten it, or the operator can raise the IO processor's option "
                "text_seconds",
                "prompt",
            ) from None
        except HelperUnavailable as error:
            raise ModelError(f"long texts cannot be tokenised: {error}") from None
        return np.frombuffer(answer, np.int64)

    def shutdown(self) -> None:
        """End the processes."""
        self.pool.close()
