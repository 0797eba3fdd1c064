"""Tokenises long texts, one after another. Helper process: a text can be made to take all the time there is."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tenonry.errors import ModelError
from tenonry_helper_pool.handler import Handler, HandlerError
from tenonry_io_text.loading import load_codec

ADD, ADD_NOT = b"+", b"-"  # in front of a text: whether special tokens are added


class TextHandler(Handler):
    """Answers each text, in UTF-8, with its token ids, i64[n] as bytes. `setup`: the tokenizer's folder."""

    def __init__(self, setup: bytes) -> None:
        super().__init__(setup)
        try:
            self._codec = load_codec(Path(setup.decode()))
        except ModelError as error:
            raise HandlerError(str(error)) from None

    def work(self, body: memoryview) -> list[bytes]:
        text = str(body[len(ADD) :], "utf-8")
        ids = self._codec.encode(text, add_special_tokens=body[: len(ADD)] == ADD)
        return [np.array(ids, np.int64).tobytes()]
