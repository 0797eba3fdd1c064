"""From a `StructuredOutput` to the text that llguidance compiles. Pure; the library's own translators do the work."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from tenonry.sampling_params import StructuredOutput
from tenonry_grammar_llguidance.schema import rewritten
from tenonry_grammars.base import GrammarError
from tenonry_grammars.notation import is_lark
from tenonry_grammars.schema import parse_schema
from tenonry_grammars.schemas.rewriting import Rewritten

# Translated in Python, which holds up the other threads of the process: about 15 ms for this many bytes.
MAX_GBNF_BYTES = 8192
# A space, or a line break and its indentation: a model that likes white space could write nothing else for ever.
WHITESPACE = r"( |\r?\n[ \t]{0,20})"
# Each text has one form: with \u a property could be written under another name, past its rule. Control characters that
# JSON writes in no other way are left out.
ESCAPES = 'nrbtf\\"'
JSON_OPTIONS = {"whitespace_pattern": WHITESPACE, "lenient": False, "json_allowed_escapes": ESCAPES}
DECODER = json.JSONDecoder()
MAX_NAMES = 16  # of special tokens that an error lists
# Texts, expressions and comments of Lark's notation, in which nothing else is read; a special token; and a schema.
LARK_PART = re.compile(
    r"""(?:\#|//)[^\n]*|"(?:\\.|[^"\\])*"|/(?:\\.|[^/\\])+/|(?P<special><[^<>\s]+>)|(?P<json>%json\s*)"""
)
ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)


class Translation(NamedTuple):
    """The library's own notation; of a schema, `paths` by the names of definitions in the library's errors."""

    text: str
    paths: Mapping[str, str] | None = None


def translated(spec: StructuredOutput, special_ids: Mapping[str, int]) -> Translation:
    """The specification for the library; `special_ids` of the tokenizer, by name.

    Raises GrammarError for what cannot be read as JSON or GBNF or is not served, and for a special token that the
    tokenizer lacks.
    """
    from llguidance import LLMatcher

    if spec.json_object:
        return _from_json('{"type": "object"}')
    if spec.json is not None:
        return _from_json(spec.json)
    if spec.regex is not None:
        text: str = LLMatcher.grammar_from_regex(spec.regex)
    elif spec.choice is not None:
        text = LLMatcher.grammar_from_regex("|".join(map(_literal, spec.choice)))
    else:
        grammar = spec.grammar or ""
        lark = _from_lark(grammar, special_ids) if is_lark(grammar) else _from_gbnf(grammar)
        text = LLMatcher.grammar_from_lark(lark)
    return Translation(text)


def _from_json(schema: str) -> Translation:
    """A grammar that is this schema."""
    found = rewritten(parse_schema(schema))
    text = msgspec.json.encode({"grammars": [{"json_schema": _with_options(found)}]}).decode()
    return Translation(text, found.paths)


def _with_options(found: Rewritten) -> dict[str, Any]:
    body = {"anyOf": [found.schema]} if isinstance(found.schema, bool) else found.schema
    return {**body, "x-guidance": JSON_OPTIONS}


def _literal(text: str) -> str:
    """A regular expression that matches this text and nothing else."""
    return "".join(
        char if char.isalnum() or not char.isascii() else f"\\x{ord(char):02x}" for char in text
    )


def _from_lark(grammar: str, special_ids: Mapping[str, int]) -> str:
    """The grammar with ids for names of special tokens, which the library does not know, and schemas written anew."""
    parts: list[str] = []
    place = 0
    while (found := LARK_PART.search(grammar, place)) is not None:
        parts.append(grammar[place : found.start()])
        place = found.end()
        if found["json"] is not None:
            schema, place = _embedded(grammar, place)
            parts.append(f"%json {schema}")
        elif found["special"] is not None:
            parts.append(_by_id(found["special"], special_ids))
        else:
            parts.append(found[0])
    return "".join((*parts, grammar[place:]))


def _embedded(grammar: str, place: int) -> tuple[str, int]:
    """The schema at `place` for the library, and where it ends; what is no JSON is the library's to refuse."""
    try:
        schema, end = DECODER.raw_decode(grammar, place)
    except (ValueError, RecursionError):
        return "", place
    try:
        return msgspec.json.encode(_with_options(rewritten(schema))).decode(), end
    except GrammarError as error:
        where = f" {error.path}" if error.path else ""
        raise GrammarError(f"%json{where}: {error}") from None


def _by_id(name: str, special_ids: Mapping[str, int]) -> str:
    if name.startswith("<["):
        return name
    if name not in special_ids:
        known = ", ".join(sorted(special_ids)[:MAX_NAMES])
        raise GrammarError(f"the tokenizer has no special token {name[:64]}; it has {known}")
    return f"<[{special_ids[name]}]>"


def _from_gbnf(grammar: str) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark

    size = len(grammar.encode())
    if size > MAX_GBNF_BYTES:
        raise GrammarError(
            f"a grammar in GBNF has {size} bytes; at most {MAX_GBNF_BYTES} are translated: write it in Lark's notation"
        )
    try:
        text: str = gbnf_to_lark(ESCAPE.sub(_plain, grammar))
    except Exception as error:  # noqa: BLE001 - what the translator raises
        what = " ".join(str(error).split()) or type(error).__name__
        raise GrammarError(
            f"the grammar has no rule 'start:' as Lark's notation wants, and cannot be read as GBNF: {what}"
        ) from None
    return text


def _plain(found: re.Match[str]) -> str:
    """A numbered escape as its character, or as one of two digits where that means something in the notation.

    The translator loses leading zeros of other escapes.
    """
    digits = found[1] or found[2] or found[3]
    if digits is None:
        return found[0]
    code = int(digits, 16)
    if code < 0x80 and not chr(code).isalnum():
        return f"\\x{code:02x}"
    if 0xD800 <= code <= 0xDFFF or code > 0x10FFFF:
        raise GrammarError(f"the escape {found[0]} is no character of Unicode")
    return chr(code)
