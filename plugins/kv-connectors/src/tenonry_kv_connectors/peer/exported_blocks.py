"""The blocks of one rank that other engines may fetch, each prompt's under a token and for a bounded time. Worker
process.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping


class ExportedPrompt:
    """The blocks of one prompt by digest; they go after `readers` engines' requests had them, or at `due`."""

    def __init__(self, blocks: Mapping[bytes, bytes], readers: int, due: float) -> None:
        self.blocks = blocks
        self.readers = readers
        self.due = due
        self.size = sum(map(len, blocks.values()))


class ExportedBlocks:
    """At most `limit` bytes, each prompt's for `seconds`. A prompt without room is not kept."""

    def __init__(self, limit: int, seconds: float) -> None:
        self._limit = limit
        self._seconds = seconds
        self._prompts: OrderedDict[str, ExportedPrompt] = (
            OrderedDict()
        )  # by token, the oldest first
        self.used = 0

    def __len__(self) -> int:
        return len(self._prompts)

    @property
    def room(self) -> int:
        """Bytes that would still be kept."""
        return self._limit - self.used

    def put(self, token: str, blocks: Mapping[bytes, bytes], readers: int, now: float) -> None:
        """Keep the blocks, if there is room."""
        prompt = ExportedPrompt(blocks, readers, now + self._seconds)
        if prompt.size <= self.room:
            self._prompts[token] = prompt
            self.used += prompt.size

    def get(self, token: str) -> Mapping[bytes, bytes] | None:
        """The blocks of this token."""
        prompt = self._prompts.get(token)
        return None if prompt is None else prompt.blocks

    def had(self, token: str) -> None:
        """One reader has all it wanted."""
        prompt = self._prompts.get(token)
        if prompt is not None:
            prompt.readers -= 1
            if prompt.readers <= 0:
                self._drop(token)

    def expire(self, now: float) -> int:
        """Drop what no reader came for in time; returns how many prompts that were."""
        late = [token for token, prompt in self._prompts.items() if prompt.due <= now]
        for token in late:
            self._drop(token)
        return len(late)

    def clear(self) -> None:
        self._prompts.clear()
        self.used = 0

    def _drop(self, token: str) -> None:
        self.used -= self._prompts.pop(token).size
