"""JSON within an answer, passed on while it arrives: values unchanged, strings decoded, typed texts. Front end.

Only the ends of values are checked: validating the arguments is left to the caller of the API. JSON has no `<` outside
of strings, so markup ends a broken value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from tenonry_output_parsers.text_input import Emit, Malformed, Steps, TextInput

MAX_HELD = (
    1 << 16
)  # characters of a call that are held back until the name of its function is known
MAX_KEY = 1024
_STRUCTURE = re.compile(r'["{}\[\]<]')
_STRING_STOP = re.compile(r'["\\]')
_SCALAR_STOP = re.compile(r'[,\]}\s<"{\[]')
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_HEX = frozenset("0123456789abcdefABCDEF")


def pass_value(source: TextInput, emit: Emit) -> Steps[None]:
    """Pass one value on. Raises Malformed if none begins here, markup interrupts it, or the text ends."""
    first = yield from source.need()
    if first in "{[":
        yield from _pass_container(source, emit)
    elif first == '"':
        yield from _pass_string(source, emit)
    else:
        yield from _pass_scalar(source, emit)


def _pass_container(source: TextInput, emit: Emit) -> Steps[None]:
    depth = 0
    while True:
        emit(source.before(_STRUCTURE))
        character = yield from source.need()
        if character in "{[":
            depth += 1
        elif character in "}]":
            depth -= 1
        elif character == '"':
            yield from _pass_string(source, emit)
            continue
        elif character == "<":
            raise Malformed(character)
        else:
            continue  # more text has arrived
        emit((yield from source.take()))
        if not depth:
            return


def _pass_string(source: TextInput, emit: Emit) -> Steps[None]:
    emit((yield from source.take()))
    while True:
        emit(source.before(_STRING_STOP))
        character = yield from source.need()
        if character not in '"\\':
            continue
        emit((yield from source.take()))
        if character == '"':
            return
        emit((yield from source.take()))


def _pass_scalar(source: TextInput, emit: Emit) -> Steps[None]:
    is_empty = True
    while True:
        piece = source.before(_SCALAR_STOP)
        is_empty = is_empty and not piece
        emit(piece)
        character = yield from source.peek()
        if not character or _SCALAR_STOP.match(character):
            break
    if is_empty:
        raise Malformed("a value is missing")


def pass_decoded(source: TextInput, emit: Emit) -> Steps[None]:
    """Pass on a decoded string, without its quotes and escapes; half a surrogate pair is U+FFFD."""
    yield from source.expect('"')
    while True:
        emit(source.before(_STRING_STOP))
        character = yield from source.need()
        if character == "\\":
            yield from source.take()
            emit((yield from _escaped(source)))
        elif character == '"':
            yield from source.take()
            return


def _escaped(source: TextInput) -> Steps[str]:
    """The text of an escape, whose backslash was read."""
    character = yield from source.take()
    if character != "u":
        return _ESCAPES.get(character, character)
    return (yield from numbered_character(source))


def numbered_character(source: TextInput) -> Steps[str]:
    r"""The character of an escape behind `\u`, which may be two of them; half a surrogate pair is U+FFFD."""
    text = "\\u" + (yield from hex_digits(source, 4))
    if "\\ud800" <= text.lower() < "\\udc00" and (yield from source.accept("\\u")):
        text += "\\u" + (yield from hex_digits(source, 4))
    decoded: str = json.loads(f'"{text}"')
    return decoded.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def hex_digits(source: TextInput, number: int) -> Steps[str]:
    """Read `number` hexadecimal digits. Raises Malformed."""
    digits = ""
    while len(digits) < number:
        character = yield from source.need()
        if character not in _HEX:
            raise Malformed(character)
        digits += yield from source.take()
    return digits


def short_string(source: TextInput) -> Steps[str]:
    """Read a string of at most `MAX_KEY` characters. Raises Malformed."""
    has_limit = source.is_limited
    if not has_limit:
        source.limit(MAX_KEY)
    pieces: list[str] = []
    yield from pass_decoded(source, pieces.append)
    if not has_limit:
        source.unlimit()
    return "".join(pieces)


def pass_arguments(source: TextInput, emit: Emit) -> Steps[None]:
    """Pass arguments on as JSON: an object unchanged, a string with JSON in it decoded, nothing as `{}`."""
    first = yield from source.need()
    if first == '"':
        is_empty = True

        def emit_decoded(piece: str) -> None:
            nonlocal is_empty
            is_empty = is_empty and not piece
            emit(piece)

        yield from pass_decoded(source, emit_decoded)
        if is_empty:
            emit("{}")
    elif first == "n":
        held: list[str] = []
        yield from pass_value(source, held.append)
        text = "".join(held)
        emit("{}" if text == "null" else text)
    else:
        yield from pass_value(source, emit)


def typed(text: str, schema: object) -> str:
    """Convert a value in markup to JSON: by the type in its schema, as a string if it does not have that type."""
    kinds = schema_types(schema)
    if kinds and kinds != {"string"}:
        stripped = text.strip()
        lowered = stripped.lower()
        candidate = lowered if lowered in {"true", "false", "null"} else stripped
        try:
            value = json.loads(candidate, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            pass
        else:
            if not isinstance(value, str) or "string" not in kinds:
                return candidate
    return json.dumps(text, ensure_ascii=False)


def _no_constant(name: str) -> None:
    raise ValueError(name)


def schema_types(schema: object) -> set[str]:
    """Types that a schema allows, alternatives included; empty if it declares none."""
    if not isinstance(schema, dict):
        return set()
    named = schema.get("type")
    kinds = set(filter(_is_text, named if isinstance(named, list) else [named]))
    for group in ("anyOf", "oneOf"):
        alternatives = schema.get(group)
        for one in alternatives if isinstance(alternatives, Sequence) else ():
            kinds |= schema_types(one) if isinstance(one, dict) and group not in one else set()
    if not kinds and ("properties" in schema or "items" in schema):
        kinds.add("object")
    return kinds


def _is_text(value: object) -> bool:
    return isinstance(value, str)
