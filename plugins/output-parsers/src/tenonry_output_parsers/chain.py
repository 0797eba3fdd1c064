"""Several parsers as one: each reads the text events of the one before it. Front end."""

from __future__ import annotations

from collections.abc import Sequence

from tenonry_output_parsers.base import OutputParser
from tenonry_output_parsers.events import Event, TextDelta, joined


class Chain:
    """Feeds parsers in order: `think` first, then the parser of calls."""

    __slots__ = ("_parsers",)

    def __init__(self, parsers: Sequence[OutputParser]) -> None:
        self._parsers = parsers

    def feed(self, text: str, token_ids: Sequence[int]) -> list[Event]:
        """Events of more text. Propagates exceptions of the parsers."""
        first, *others = self._parsers
        events = first.feed(text, token_ids)
        for parser in others:
            events = _through(parser, events, token_ids)
        return events

    def close(self) -> list[Event]:
        """The events after the last text."""
        events: list[Event] = []
        for parser in self._parsers:
            events = [*_through(parser, events, ()), *parser.close()]
        return joined(events)


def _through(parser: OutputParser, events: list[Event], token_ids: Sequence[int]) -> list[Event]:
    found: list[Event] = []
    for event in events:
        if isinstance(event, TextDelta):
            found += parser.feed(event.text, token_ids)
        else:
            found.append(event)
    return found
