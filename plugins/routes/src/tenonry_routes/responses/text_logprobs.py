"""Log-probabilities of the tokens in the text of an answer, without those of reasoning, calls and markup. Front end.

Parsers turn tokens into texts, and a text may come later than its tokens. So tokens wait until a text is found in what
they spell, in order: each belongs to the first text that it overlaps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any


class TextLogprobs:
    """Divides the log-probabilities of one answer among its texts. An entry's `bytes` are those that its token adds."""

    __slots__ = ("_data", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[tuple[Any, int]] = deque()  # with the bytes that are left of each
        self._data = bytearray()

    def add(self, entries: Iterable[Any]) -> None:
        """The tokens of the next part of the answer."""
        for entry in entries:
            data = bytes(entry.bytes or ())
            self._waiting.append((entry, len(data)))
            self._data += data

    def take(self, text: str) -> list[Any]:
        """Entries of the tokens that spell the next text; all pending ones if it is spelt otherwise."""
        wanted = text.encode()
        start = self._data.find(wanted)
        if start < 0:
            start, wanted = 0, bytes(self._data)
        end = start + len(wanted)
        taken: list[Any] = []
        place = 0
        while self._waiting and place < end:
            entry, left = self._waiting.popleft()
            if place + left > start and left:
                taken.append(entry)
            place += left
        if place > end:  # its other bytes belong to the next text, and it is counted here
            self._waiting.appendleft((None, place - end))
        del self._data[:end]
        return [entry for entry in taken if entry is not None]
