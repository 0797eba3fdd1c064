"""Stop strings over a stream of text, wherever the token borders fall. Front end, on the hot path of their requests.

The result does not depend on how the text was cut into tokens: the stop string that is complete first ends the
output, and of several that end at the same character the longest, because it began first.
"""

from __future__ import annotations

from collections.abc import Sequence

from tenonry_io_text.detokenizers import TextStream


class StopString:
    """Follows one stop string through a text, one character at a time: Knuth, Morris, Pratt, SIAM J. Comput. 6 (1977).

    `matched`: length of the longest end of the text that is a start of the stop string. The borders (length of the
    longest proper start of `text[:n]` that is also its end) are worked out as far as they are needed.
    """

    __slots__ = ("_borders", "matched", "text")

    def __init__(self, text: str) -> None:
        self.text, self.matched = text, 0
        self._borders = [0]

    def advance(self, char: str) -> bool:
        """Return True if the stop string is complete with this character; a possible overlap then stays matched."""
        text = self.text
        borders = self._borders
        matched = self.matched
        while matched and text[matched] != char:
            matched = borders[matched - 1]
        if text[matched] == char:
            matched += 1
            if matched > len(borders):
                self._add_border()
        complete = matched == len(text)
        self.matched = borders[matched - 1] if complete else matched
        return complete

    def _add_border(self) -> None:
        text, borders = self.text, self._borders
        char, border = text[len(borders)], borders[-1]
        while border and text[border] != char:
            border = borders[border - 1]
        borders.append(border + 1 if text[border] == char else 0)


class StopDetokenizer:
    """The kernel's Detokenizer with stop strings, over any stream.

    Exactly the longest end of the text that may yet become a stop string is held back. The first `min_tokens` tokens
    are not looked at: a stop string counts if a later token completes it.
    """

    __slots__ = (
        "_feed",
        "_first_chars",
        "_held",
        "_include",
        "_min_tokens",
        "_num_tokens",
        "_stops",
        "_stream",
        "consumed",
        "stop_reason",
    )

    def __init__(
        self,
        stream: TextStream,
        stop_strings: Sequence[str],
        *,
        include: bool = False,
        min_tokens: int = 0,
    ) -> None:
        self._stream, self._feed = stream, stream.feed
        self._stops = [
            StopString(text) for text in sorted(set(stop_strings), key=len, reverse=True)
        ]
        self._first_chars = frozenset(stop.text[0] for stop in self._stops)
        self._include, self._min_tokens = include, min_tokens
        self._num_tokens = 0
        self._held = ""
        self.consumed = 0
        self.stop_reason: str | None = None

    def push(self, token_ids: Sequence[int]) -> str:
        text, count = "", 0
        for token_id in token_ids:
            if self.stop_reason is not None:
                break
            count += 1
            self._num_tokens += 1
            piece = self._feed(token_id)
            if self._held or not self._first_chars.isdisjoint(piece):
                piece = self._scan(piece, self._num_tokens > self._min_tokens)
            text += piece
        self.consumed = count
        return text

    def _scan(self, piece: str, counts: bool) -> str:
        """The part of held text and piece that is certain; sets `stop_reason` if a stop string is complete."""
        text, held = self._held + piece, len(self._held)
        for at, char in enumerate(piece, held + 1):
            if not held and char not in self._first_chars:
                continue
            held, complete = self._advance(char)
            if complete and counts:
                self._held, self.stop_reason = "", complete
                return text[:at] if self._include else text[: at - len(complete)]
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def _advance(self, char: str) -> tuple[int, str | None]:
        """(the longest start of a stop string that the text now ends with, the longest stop string now complete)."""
        held, complete = 0, None
        for stop in self._stops:
            if stop.matched or stop.text[0] == char:
                if stop.advance(char) and complete is None:
                    complete = stop.text
                held = max(held, stop.matched)
        return held, complete

    def finish(self) -> str:
        """Return the text held back: an unfinished stop string, and the bytes of a broken character."""
        held, self._held = self._held, ""
        return held + self._stream.flush() if self.stop_reason is None else ""
