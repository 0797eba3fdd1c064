"""A JSON schema as llguidance gets it: written anew from the forms of values that it allows. Pure.

The library reads some drafts' keywords in another draft's way, passes over others, and leads into dead ends where a
pattern has no name left. What it gets here are types with their bounds, lists of values, alternatives and references.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

from tenonry_grammars import characters as chars
from tenonry_grammars.base import GrammarError
from tenonry_grammars.characters import Chars
from tenonry_grammars.derivatives import NOTHING, without
from tenonry_grammars.nodes import Node, all_sets
from tenonry_grammars.regex_text import excluding_text, pattern_text
from tenonry_grammars.schemas import rewriting
from tenonry_grammars.schemas.leaves import ANY, Array, Flag, Leaf, Null, Number, Object, Text
from tenonry_grammars.schemas.rewriting import Rewritten
from tenonry_grammars.schemas.writer import FormWriter, Part, Schema, bounds

# Control characters that JSON writes as \\u alone, see `JSON_OPTIONS`.
UNWRITTEN = chars.minus(chars.union(((0, 0x1F), (0x7F, 0x7F))), chars.of("\b\f\n\r\t"))
UNWRITTEN_CHAR = re.compile("[\x00-\x07\x0b\x0e-\x1f\x7f\ud800-\udfff]")
LARGEST = Fraction((1 << 63) - 1024)
EXACT = 1 << 53  # the library reads numbers as floats, in which larger integers are rounded


def rewritten(schema: Any) -> Rewritten:
    """Raises GrammarError with the path of what no grammar holds, or that nothing satisfies."""
    return rewriting.rewritten(schema, LLGuidanceForms())


class LLGuidanceForms(FormWriter):
    """See `tenonry_grammars.schemas.writer.FormWriter`."""

    def is_small(self, leaf: Leaf) -> bool:
        if isinstance(leaf, Text):
            return not (leaf.patterns or leaf.others)
        if isinstance(leaf, Number):
            return leaf.factor is None
        return isinstance(leaf, Null | Flag)

    def number(self, leaf: Number) -> Schema:
        return _number(leaf)

    def text(self, leaf: Text) -> Schema:
        return _text(leaf)

    def array(self, leaf: Array, part: Part) -> Schema:
        found: Schema = {"type": "array"}
        if leaf.first:
            found["prefixItems"] = [part(conditions) for conditions in leaf.first]
        if leaf.rest != ANY:
            found["items"] = part(leaf.rest)
        return found | bounds(leaf, "Items")

    def object(self, leaf: Object, part: Part) -> Schema:
        found: Schema = {"type": "object"}
        for name in dict.fromkeys((*dict(leaf.properties), *leaf.required)):
            _check_text(name)
        if leaf.properties:
            found["properties"] = {name: part(conditions) for name, conditions in leaf.properties}
        if leaf.patterns:
            names = [name for name, _ in leaf.properties]
            # The library would join what a property says with a pattern that matches it, where that is done already.
            nodes = [(without(node, names), conditions) for node, conditions in leaf.patterns]
            found["patternProperties"] = {
                _anchored(node): part(inner) for node, inner in nodes if node != NOTHING
            }
        if leaf.rest != ANY:
            found["additionalProperties"] = part(leaf.rest)
        if leaf.required:
            found["required"] = list(leaf.required)
        return found | bounds(leaf, "Properties")


def _number(leaf: Number) -> Schema:
    if leaf.values is not None:
        return {"enum": [_exact(value) for value in leaf.values]}
    found: Schema = {"type": "integer" if leaf.is_whole else "number"}
    if leaf.low is not None:
        found["exclusiveMinimum" if leaf.excludes_low else "minimum"] = _bound(
            leaf, leaf.low, is_low=True
        )
    if leaf.high is not None:
        found["exclusiveMaximum" if leaf.excludes_high else "maximum"] = _bound(
            leaf, leaf.high, is_low=False
        )
    if leaf.factor is not None:
        found["multipleOf"] = _exact(leaf.factor)
    return found


def _exact(value: Fraction) -> int | float:
    """Raises GrammarError for a number that is rounded as a float."""
    found = int(value) if value.denominator == 1 else float(value)
    if isinstance(found, int) and abs(found) > EXACT:
        raise GrammarError(
            f"the number {found} is beyond the integers that are served, up to 2**53 = {EXACT}"
        )
    return found


def _bound(leaf: Number, value: Fraction, *, is_low: bool) -> int | float:
    """The bound, or the next one within it that a float can be, and for integers one of 64 bits.

    Raises GrammarError for a bound that leaves nothing within 64 bits.
    """
    if (value > LARGEST) if is_low else (value < -LARGEST):
        raise GrammarError(
            f"the bound {float(value):g} leaves no number that is served; those up to {int(LARGEST)} are"
        )
    if leaf.is_whole:
        value = max(-LARGEST, value) if is_low else min(LARGEST, value)
    if value.denominator == 1 and abs(value) <= EXACT:
        return int(value)
    found = float(value)
    written = Fraction(found) if value.denominator == 1 else Fraction(repr(found))
    if written < value and is_low:
        found = math.nextafter(found, math.inf)
    if written > value and not is_low:
        found = math.nextafter(found, -math.inf)
    return int(found) if value.denominator == 1 else found


def _text(leaf: Text) -> Schema:
    if leaf.values is not None:
        for value in leaf.values:
            _check_text(value)
        return {"enum": list(leaf.values)}
    found: Schema = {"type": "string"} | bounds(leaf, "Length")
    patterns = [_anchored(node) for node in leaf.patterns]
    if leaf.others:
        patterns.append(f"^(?:{excluding_text(leaf.others)})$")
    if patterns:
        found["pattern"] = patterns[0]
    if len(patterns) > 1:
        return {
            "allOf": [found, *({"type": "string", "pattern": pattern} for pattern in patterns[1:])]
        }
    return found


def _check_text(text: str) -> None:
    """Raises GrammarError for a character that JSON writes by its number alone."""
    found = UNWRITTEN_CHAR.search(text)
    if found:
        raise GrammarError(
            f"the text {text!r:.64} has the character {found[0]!r}, which JSON writes by its number: such control "
            "characters and halves of surrogate pairs are not served; leave them out"
        )


@lru_cache(4096)
def _is_written(some: Chars) -> bool:
    """Return True if JSON writes one of the characters in another form than its number."""
    return bool(chars.minus(some, UNWRITTEN))


def _anchored(node: Node) -> str:
    """Raises GrammarError for a set of control characters alone."""
    if not all(map(_is_written, set(all_sets(node)))):
        raise GrammarError("the expression demands a control character, which is not served")
    return f"^(?:{pattern_text(node)})$"
