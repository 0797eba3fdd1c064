"""Parsers that are written as one generator over the text of an answer. Front end.

    class Shouting(ScanningParser):
        reads_calls = True

        def read(self):
            while (yield from self.source.until(("!!",), self.text)):
                ...

The base runs the generator whenever text arrives and deals with what all formats share: white space around markup is
dropped, a failed call is passed on as text, and a call that is open at the end is closed.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Sequence

from tenonry_output_parsers.base import OutputParser, ParserContext
from tenonry_output_parsers.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Event,
    ReasoningDelta,
    TextDelta,
    joined,
)
from tenonry_output_parsers.json_values import MAX_HELD, pass_arguments, pass_value, short_string
from tenonry_output_parsers.text_input import Malformed, Steps, TextInput

NAME_KEYS = frozenset({"name", "tool_name"})
ARGUMENT_KEYS = frozenset({"arguments", "parameters"})
MAX_SPACES = 64
MAX_BETWEEN = 256  # characters between the end of a call's arguments and its end tag


class Trimmed:
    """Text without the white space around markup; of longer white space the last `MAX_SPACES` characters go."""

    __slots__ = ("_emit", "_is_at_start", "_spaces")

    def __init__(self, emit: Callable[[str], object]) -> None:
        self._emit = emit
        self._spaces = ""
        self._is_at_start = False

    def push(self, text: str) -> None:
        """Append text. White space at its end is held back until more follows."""
        if self._is_at_start:
            text = text.lstrip()
            self._is_at_start = not text
        kept = text.rstrip()
        if kept:
            self._emit(self._spaces + kept)
            self._spaces = text[len(kept) :]
        else:
            self._spaces += text
        excess = len(self._spaces) - MAX_SPACES
        if excess > 0:
            self._emit(self._spaces[:excess])
            self._spaces = self._spaces[excess:]

    def cut(self) -> None:
        """Mark the position of markup: white space around it is dropped."""
        self._spaces = ""
        self._is_at_start = True

    def flush(self) -> None:
        """The end of the answer: white space at the end stays."""
        if self._spaces:
            self._emit(self._spaces)
            self._spaces = ""


class ScanningParser(OutputParser):
    """A parser whose `read` is a generator over `source`. Text that it leaves unread is passed on."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self.source = TextInput()
        self._events: list[Event] = []
        self._text = Trimmed(lambda piece: self._events.append(TextDelta(piece)))
        self._reasoning = Trimmed(lambda piece: self._events.append(ReasoningDelta(piece)))
        self._num_calls = 0
        self._is_call_open = False
        self._steps = self._read_all()

    @abstractmethod
    def read(self) -> Steps[None]:
        """Read the answer; runs until the text ends or until all that follows is text."""

    def feed(self, text: str, token_ids: Sequence[int]) -> list[Event]:
        self.source.push(text)
        next(self._steps)
        return self._taken()

    def close(self) -> list[Event]:
        self.source.close()
        for _ in self._steps:
            raise RuntimeError(f"{type(self).__name__}.read waits for text after the end")
        return self._taken()

    def _read_all(self) -> Steps[None]:
        yield from self.read()
        while not self.source.is_closed:
            self._pass(self.source.rest())
            yield
        self._pass(self.source.rest())
        self._reasoning.flush()
        self._text.flush()

    def _pass(self, text: str) -> None:
        """Text after which no markup can come: its white space waits for nothing."""
        self.text(text)
        self._text.flush()

    def _taken(self) -> list[Event]:
        events = self._events
        self._events = []
        return joined(events) if len(events) > 1 else events

    # ------------------------------------------------------------------ events of a reading
    def text(self, piece: str) -> None:
        """More of the answer's text."""
        self._text.push(piece)

    def reasoning(self, piece: str) -> None:
        """More of the reasoning."""
        self._reasoning.push(piece)

    def cut(self) -> None:
        """Mark the position of markup other than a call's: white space around it is dropped."""
        self._text.cut()
        self._reasoning.cut()

    def start_call(self, name: str, call_id: str = "") -> None:
        """Begin a call; the text read for it is no longer text. Raises Malformed for an invalid name."""
        if not name or not name.isprintable():
            raise Malformed("the function has no name")
        self.source.unlimit()
        self.cut()
        self._num_calls += 1
        self._is_call_open = True
        self._events.append(CallStart(name, call_id))

    def arguments(self, piece: str) -> None:
        """More of the open call's arguments."""
        self._events.append(CallArguments(piece))

    def end_call(self) -> None:
        """The open call ends."""
        self._is_call_open = False
        self._events.append(CallEnd())

    # ------------------------------------------------------------------ what formats share
    def attempt(self, lead: str, reading: Steps[None]) -> Steps[bool]:
        """Run a reading of one call or several, after the markup `lead`; returns whether it began one.

        If it began none, all that it read is text; a call that it left open ends.
        """
        before = self._num_calls
        self.source.limit(MAX_HELD)
        try:
            yield from reading
        except Malformed:
            read = self.source.unlimit()
            if self._num_calls == before:
                self.text(lead + read)
                return False
            if self._is_call_open:
                self.end_call()
            else:
                self.text(read)
        self.source.unlimit()
        return True

    def skip_to(self, *marks: str) -> Steps[str]:
        """Read up to and including one of these marks if it is near; else skip nothing. Returns it, or ""."""
        self.source.limit(MAX_BETWEEN)
        held: list[str] = []
        try:
            mark = yield from self.source.until(marks, held.append)
        except Malformed:
            mark = ""
        read = self.source.unlimit()
        if not mark:
            self.text(read)
        return mark

    def call_object(self) -> Steps[None]:
        """A call as a JSON object with a key of `NAME_KEYS` and one of `ARGUMENT_KEYS`."""
        source = self.source
        if not source.is_limited:
            source.limit(MAX_HELD)
        held: list[str] = []
        begun = False
        has_arguments = False
        yield from source.expect("{")
        while True:
            yield from source.spaces()
            key = yield from short_string(source)
            yield from source.spaces()
            yield from source.expect(":")
            yield from source.spaces()
            if key in NAME_KEYS and not begun:
                self.start_call(self.checked_name((yield from short_string(source))))
                begun = True
                self.arguments("".join(held))
            elif key in ARGUMENT_KEYS and not has_arguments:
                has_arguments = True
                yield from pass_arguments(source, self.arguments if begun else held.append)
            else:
                yield from pass_value(source, _ignore)
            yield from source.spaces()
            if (yield from source.need()) == "}":
                yield from source.take()
                break
            yield from source.expect(",")
        if not begun:
            raise Malformed("the call names no function")
        if not has_arguments:
            self.arguments("{}")
        self.end_call()

    def call_list(self) -> Steps[None]:
        """A JSON list of such objects."""
        yield from self.source.expect("[")
        yield from self.source.spaces()
        while True:
            yield from self.call_object()
            yield from self.source.spaces()
            if (yield from self.source.take()) != ",":
                return
            yield from self.source.spaces()
            if (yield from self.source.accept("]")):
                return

    def checked_name(self, name: str) -> str:
        """The function's name. Formats without markup raise Malformed for one that the request does not offer."""
        return name


class ArgumentWriter:
    """Arguments with special markup, written as one JSON object."""

    __slots__ = ("_emit", "_is_empty")

    def __init__(self, emit: Callable[[str], object]) -> None:
        self._emit = emit
        self._is_empty = True

    def key(self, name: str) -> None:
        """The next argument; its value follows through `value`."""
        lead = "{" if self._is_empty else ", "
        self._is_empty = False
        self._emit(f"{lead}{json.dumps(name, ensure_ascii=False)}: ")

    def value(self, text: str) -> None:
        """A part of a value, as JSON."""
        self._emit(text)

    def end(self) -> None:
        """The end of the object."""
        self._emit("{}" if self._is_empty else "}")


class StringWriter:
    """A string argument, written as JSON while it arrives. `trims`: without one line break at its start and its end."""

    __slots__ = ("_emit", "_held", "_is_at_start", "_trims")

    def __init__(self, emit: Callable[[str], object], *, trims: bool = True) -> None:
        self._emit = emit
        self._held = ""
        self._is_at_start = True
        self._trims = trims
        emit('"')

    def push(self, text: str) -> None:
        """More of the text, not empty."""
        if self._trims:
            if self._is_at_start:
                text = text.removeprefix("\n")
                self._is_at_start = False
            text = self._held + text
            self._held = "\n" if text.endswith("\n") else ""
            text = text.removesuffix("\n")
        self._emit(json.dumps(text, ensure_ascii=False)[1:-1])

    def end(self) -> None:
        """The end of the string."""
        self._emit('"')


def _ignore(_: str) -> None:
    """Discard a value that is irrelevant to the call."""
