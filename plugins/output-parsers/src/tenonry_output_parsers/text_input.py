"""Text that arrives in pieces, as if it were whole: the input of parsers that are generators. Front end.

A reading method is a generator that waits with a bare `yield` for more text. It depends on characters alone, never on
the ends of pieces: it waits whenever the next characters could make a difference. Limits are counted in characters,
too, and are exact.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Generator
from typing import TypeVar

Result = TypeVar("Result")
Steps = Generator[None, None, Result]
Emit = Callable[[str], object]
_NO_SPACE = re.compile(r"\S")


class Malformed(Exception):
    """The following text is not of the format, or too long to be held."""


class EndOfText(Malformed):
    """The answer ended within markup."""


def check_marks(*marks: str) -> tuple[str, ...]:
    """Marks for `TextInput.until`. Raises ValueError if one of them begins another one."""
    for mark in marks:
        if any(mark != other and other.startswith(mark) for other in marks):
            raise ValueError(f"the mark {mark!r} begins another one")
    return marks


@functools.lru_cache(maxsize=512)
def _search(marks: tuple[str, ...]) -> tuple[re.Pattern[str], frozenset[str], int]:
    """(the marks as an expression, their proper prefixes, the length of the longest prefix)."""
    beginnings = frozenset(mark[:end] for mark in marks for end in range(1, len(mark)))
    pattern = re.compile("|".join(map(re.escape, marks)))
    return pattern, beginnings, max(map(len, marks)) - 1


class TextInput:
    """Unread part of the text that has arrived.

    While there is a limit, text that is read is remembered and can be passed back as text; reading beyond it raises
    Malformed.
    """

    __slots__ = ("_at", "_left", "_read", "_text", "is_closed")

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._left: int | None = None
        self._read: list[str] = []
        self.is_closed = False

    def push(self, text: str) -> None:
        """More text has arrived."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def close(self) -> None:
        """No more text will arrive."""
        self.is_closed = True

    # ------------------------------------------------------------------ limits
    @property
    def is_limited(self) -> bool:
        """True while there is a limit."""
        return self._left is not None

    def limit(self, characters: int) -> None:
        """Remember the text read from here on, at most `characters` of it."""
        self._left = characters
        self._read = []

    def unlimit(self) -> str:
        """End the limit; returns the text read under it."""
        read = "".join(self._read)
        self._left = None
        self._read = []
        return read

    def _take(self, end: int) -> str:
        """Read up to the index `end`. Raises Malformed at the limit, exactly there."""
        start = self._at
        left = self._left
        if left is None:
            self._at = end
            return self._text[start:end]
        stop = min(end, start + left)
        piece = self._text[start:stop]
        self._at = stop
        self._left = left - len(piece)
        self._read.append(piece)
        if stop < end:
            raise Malformed("longer than a parser may hold")
        return piece

    # ------------------------------------------------------------------ reading
    def peek(self) -> Steps[str]:
        """The next character, which is not read; "" at the end."""
        while self._at == len(self._text):
            if self.is_closed:
                return ""
            yield
        return self._text[self._at]

    def need(self) -> Steps[str]:
        """The next character, which is not read. Raises EndOfText."""
        character = yield from self.peek()
        if not character:
            raise EndOfText
        return character

    def take(self) -> Steps[str]:
        """The next character. Raises EndOfText."""
        yield from self.need()
        return self._take(self._at + 1)

    def expect(self, character: str) -> Steps[None]:
        """Read this character. Raises Malformed for another one."""
        if (yield from self.need()) != character:
            raise Malformed(character)
        self._take(self._at + 1)

    def before(self, pattern: re.Pattern[str]) -> str:
        """Read available text up to the first character matched by `pattern`, a set of characters; may be empty."""
        found = pattern.search(self._text, self._at)
        return self._take(found.start() if found else len(self._text))

    def rest(self) -> str:
        """All that has arrived."""
        return self._take(len(self._text))

    def spaces(self) -> Steps[None]:
        """Read white space."""
        while True:
            self.before(_NO_SPACE)
            if not (yield from self.peek()).isspace():
                return

    def accept(self, *marks: str) -> Steps[str]:
        """Read one of these marks, if it comes next; returns it, or ""."""
        longest = max(map(len, marks))
        while True:
            for mark in marks:
                if self._text.startswith(mark, self._at):
                    return self._take(self._at + len(mark))
            start = self._text[self._at : self._at + longest]
            if self.is_closed or not any(mark.startswith(start) for mark in marks):
                return ""
            yield

    def until(self, marks: tuple[str, ...], emit: Emit) -> Steps[str]:
        """Read up to and with the first of `marks`, which `check_marks` has checked; returns it, or "" at the end.

        Text before it goes to `emit` as soon as it can be no part of a mark.
        """
        while True:
            start, mark = self._find(marks)
            if start > self._at:
                emit(self._take(start))
            if mark:
                return self._take(self._at + len(mark))
            if self.is_closed:
                return ""
            yield

    def _find(self, marks: tuple[str, ...]) -> tuple[int, str]:
        """(start of the first mark, the mark); (end of the text that is free of marks, "") without one."""
        text = self._text
        pattern, beginnings, longest = _search(marks)
        found = pattern.search(text, self._at)
        end = found.start() if found else len(text)
        if not self.is_closed:
            for at in range(max(self._at, len(text) - longest), end):
                if text[at:] in beginnings:
                    return at, ""
        return end, found[0] if found else ""

    def collect(self, marks: tuple[str, ...]) -> Steps[tuple[str, str]]:
        """(the text before the first of `marks`, the mark). Raises EndOfText. Only under a limit."""
        pieces: list[str] = []
        mark = yield from self.until(marks, pieces.append)
        if not mark:
            raise EndOfText
        return "".join(pieces), mark
