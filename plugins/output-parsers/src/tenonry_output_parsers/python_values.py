"""Python's literals within an answer, passed on as JSON while they arrive. Front end.

They are read character by character and never evaluated.
"""

from __future__ import annotations

import json
import math
import re

from tenonry_output_parsers.json_values import MAX_HELD, MAX_KEY, hex_digits, numbered_character
from tenonry_output_parsers.text_input import Emit, Malformed, Steps, TextInput

MAX_DEPTH = 32
MAX_SPACES = 64  # between a quote and what shows that it ends the string
CLOSED = {"[": "]", "(": ")", "{": "}"}
CONSTANTS = {
    "True": "true",
    "False": "false",
    "None": "null",
    "true": "true",
    "false": "false",
    "null": "null",
}
ESCAPES = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "a": "\a",
    "v": "\v",
    "0": "\0",
    "\n": "",
}
DIGITS = {"x": 2, "U": 8}  # of a character's number, behind the letter of the escape
BEHIND_STRING = ",)]}:"
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_STOPS = {quote: re.compile(rf"[\\{quote}]") for quote in "\"'"}
_WORD_STOP = re.compile(r"[,)\]}:\n]")
_TEXT_STOP = re.compile(r"[,)\]}\n]")


def pass_python(source: TextInput, emit: Emit, depth: int = 0) -> Steps[None]:
    """Pass one value on as JSON; a bare text is a string. Raises Malformed."""
    first = yield from source.need()
    if first in "\"'":
        yield from pass_python_string(source, emit)
    elif first == "{":
        yield from _pass_dict(source, emit, depth)
    elif first in "[(":
        yield from _pass_list(source, emit, depth)
    else:
        emit(scalar((yield from _bare(source, _TEXT_STOP))))


def _pass_list(source: TextInput, emit: Emit, depth: int) -> Steps[None]:
    close = yield from _open(source, depth)
    lead = "["
    while True:
        yield from source.spaces()
        if (yield from source.accept(close)):
            break
        emit(lead)
        lead = ", "
        yield from pass_python(source, emit, depth + 1)
        yield from _separator(source, close)
    emit("[]" if lead == "[" else "]")


def _pass_dict(source: TextInput, emit: Emit, depth: int) -> Steps[None]:
    close = yield from _open(source, depth)
    lead = "{"
    while True:
        yield from source.spaces()
        if (yield from source.accept(close)):
            break
        emit(lead)
        lead = ", "
        if (yield from source.need()) in "\"'":
            yield from pass_python_string(source, emit)
        else:
            emit(json.dumps((yield from _bare(source, _WORD_STOP)), ensure_ascii=False))
        yield from source.spaces()
        yield from source.expect(":")
        emit(": ")
        yield from source.spaces()
        yield from pass_python(source, emit, depth + 1)
        yield from _separator(source, close)
    emit("{}" if lead == "{" else "}")


def _open(source: TextInput, depth: int) -> Steps[str]:
    if depth == MAX_DEPTH:
        raise Malformed("nested too deeply")
    return CLOSED[(yield from source.take())]


def _separator(source: TextInput, close: str) -> Steps[None]:
    """Read a comma, or come to the end of the list."""
    yield from source.spaces()
    if (yield from source.need()) != close:
        yield from source.expect(",")


def _bare(source: TextInput, stop: re.Pattern[str]) -> Steps[str]:
    """A text without quotes, up to a character that ends it. Raises Malformed for none."""
    has_limit = source.is_limited
    if not has_limit:
        source.limit(MAX_HELD)
    pieces = []
    while True:
        pieces.append(source.before(stop))
        character = yield from source.need()
        if stop.match(character):
            break
    if not has_limit:
        source.unlimit()
    text = "".join(pieces).strip()
    if not text:
        raise Malformed("a value is missing")
    return text


def scalar(text: str) -> str:
    """A number, a constant or a bare text, as JSON."""
    if text in CONSTANTS:
        return CONSTANTS[text]
    if _NUMBER.fullmatch(text):
        return text
    for kind in (_whole, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if math.isfinite(value):
            return json.dumps(value)
    return json.dumps(text, ensure_ascii=False)


def _whole(text: str) -> int:
    if len(text) > MAX_KEY:
        raise ValueError(text)
    return int(text, 0)


def pass_python_string(source: TextInput, emit: Emit) -> Steps[None]:
    """Pass a string on as JSON. An unescaped quote within it belongs to it unless the rest of a call follows."""
    quote = yield from source.take()
    end = quote * 3 if (yield from source.accept(quote * 2)) else quote
    emit('"')

    def show(text: str) -> None:
        emit(json.dumps(text, ensure_ascii=False)[1:-1])

    while True:
        show(source.before(_STOPS[quote]))
        character = yield from source.need()
        if character == "\\":
            yield from source.take()
            show((yield from _escaped(source)))
        elif character == quote:
            if (yield from source.accept(end)):
                spaces = yield from _short_spaces(source)
                following = yield from source.peek()
                if following in BEHIND_STRING or len(end) > 1:
                    break
                show(end + spaces)
            else:
                show((yield from source.take()))
    emit('"')


def _short_spaces(source: TextInput) -> Steps[str]:
    found = ""
    while len(found) < MAX_SPACES and (yield from source.peek()).isspace():
        found += yield from source.take()
    return found


def _escaped(source: TextInput) -> Steps[str]:
    """Text of an escape, whose backslash was read; one unknown to Python stays unchanged."""
    letter = yield from source.take()
    if letter == "u":
        return (yield from numbered_character(source))
    if letter in DIGITS:
        digits = yield from hex_digits(source, DIGITS[letter])
        number = int(digits, 16)
        is_character = number < 0x110000 and not 0xD800 <= number < 0xE000
        return chr(number) if is_character else "\ufffd"
    return ESCAPES.get(letter, letter if letter in "\\\"'/" else f"\\{letter}")


def python_value(text: str) -> str | None:
    """A whole text that is a list, a dictionary or a string of Python, as JSON; None for any other."""
    if text[:1] not in "[({\"'":
        return None
    source = TextInput()
    source.push(text)
    source.close()
    pieces: list[str] = []
    try:
        for _ in pass_python(source, pieces.append):
            return None
    except Malformed:
        return None
    return "".join(pieces) if not source.rest().strip() else None
