"""Events of an output parser, in the order in which a client receives them. Front end."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class ReasoningDelta(msgspec.Struct, frozen=True):
    """More of the model's reasoning before the answer."""

    text: str


class TextDelta(msgspec.Struct, frozen=True):
    """More of the answer itself."""

    text: str


class CallStart(msgspec.Struct, frozen=True):
    """A call of the function `name` begins. Calls follow each other; none begins within another.

    `call_id`: the call's id where the model writes one that its chat template prints again.
    """

    name: str
    call_id: str = ""


class CallArguments(msgspec.Struct, frozen=True):
    """More of the open call's arguments, as JSON text."""

    text: str


class CallEnd(msgspec.Struct, frozen=True):
    """The open call is over."""


Event = ReasoningDelta | TextDelta | CallStart | CallArguments | CallEnd
DELTAS = (ReasoningDelta, TextDelta, CallArguments)


def joined(events: Iterable[Event]) -> list[Event]:
    """The same events with neighbours of one kind merged and empty ones removed."""
    pieces: list[tuple[type[Event], list[str]]] = []
    result: list[Event] = []

    def flush() -> None:
        for kind, texts in pieces:
            result.append(kind("".join(texts)))  # type: ignore[call-arg]
        pieces.clear()

    for event in events:
        if not isinstance(event, DELTAS):
            flush()
            result.append(event)
        elif event.text:
            if pieces and pieces[0][0] is not type(event):
                flush()
            if not pieces:
                pieces.append((type(event), []))
            pieces[0][1].append(event.text)
    flush()
    return result
