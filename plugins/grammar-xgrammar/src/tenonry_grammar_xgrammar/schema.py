"""A JSON schema as xgrammar gets it: written anew from the forms of values that it allows. Pure.

xgrammar passes over keywords that it does not know, over those that stand beside `$ref`, `enum` and `anyOf`, and over
some where others stand beside them. Here each form is written with keywords of which it enforces all they say; what
cannot be is an error with its path. Where a schema leaves open what an object may have besides its properties, it has
nothing.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from tenonry_grammar_xgrammar import numbers
from tenonry_grammar_xgrammar.write import ANY_JSON_TEXT, written
from tenonry_grammars.base import GrammarError
from tenonry_grammars.derivatives import NOTHING
from tenonry_grammars.schema import pointer
from tenonry_grammars.schemas import rewriting
from tenonry_grammars.schemas.forms import text_node
from tenonry_grammars.schemas.leaves import Array, Flag, Leaf, Null, Number, Object, Text
from tenonry_grammars.schemas.rewriting import Omitted
from tenonry_grammars.schemas.writer import FormWriter, Part, Schema, bounds

ANY = {"$ref": "#/$defs/any"}
TEXT = {"$ref": "#/$defs/text"}
ANY_TEXT: Schema = {"type": "string", "pattern": ANY_JSON_TEXT}
# Written once for all places. What xgrammar has for any value and any text allows texts that are no Unicode.
SHARED: dict[str, Schema] = {
    "text": ANY_TEXT,
    "any": {
        "anyOf": [
            {"type": "null"},
            {"type": "boolean"},
            {"type": "number"},
            TEXT,
            {"type": "array", "items": ANY},
            {"type": "object", "propertyNames": ANY_TEXT, "additionalProperties": ANY},
        ]
    },
}
ELSEWHERE = "or start with --grammar-backend llguidance"


def rewritten(schema: Any) -> Schema:
    """The same for xgrammar. Raises GrammarError with the path of what it would not enforce."""
    found, _ = rewriting.rewritten(schema, XGrammarForms())
    whole = ANY if isinstance(found, bool) else found
    definitions = {name: _value(body) for name, body in whole.get("$defs", {}).items()}
    return {**whole, "$defs": definitions | SHARED}


def _value(part: Schema | bool) -> Schema:
    """The schema of a value; forms that no value has were left out before."""
    return part if isinstance(part, dict) else dict(ANY)


class XGrammarForms(FormWriter):
    """See `tenonry_grammars.schemas.writer.FormWriter`."""

    def is_small(self, leaf: Leaf) -> bool:
        if isinstance(leaf, Text):
            return leaf.values is not None or leaf == Text()
        return isinstance(leaf, Null | Flag | Number)

    def number(self, leaf: Number) -> Schema:
        return numbers.number(leaf)

    def text(self, leaf: Text) -> Schema | bool:
        return _text(leaf)

    def array(self, leaf: Array, part: Part) -> Schema:
        return _array(leaf, part)

    def object(self, leaf: Object, part: Part) -> Schema:
        found = _closed(leaf, part) if leaf.properties else _open(leaf, part)
        return found | bounds(leaf, "Properties")


def _text(leaf: Text) -> Schema | bool:
    if leaf == Text():
        return dict(TEXT)
    if leaf.values is not None:
        return {"enum": list(leaf.values)}
    node = text_node(leaf)
    if node is None:
        raise GrammarError(
            f"its expressions and lengths together are too large an expression for xgrammar; simplify them, {ELSEWHERE}"
        )
    if node == NOTHING:
        return False
    return {"type": "string", "pattern": written(node, in_json=True) or "()"}


# ---------------------------------------------------------------------- arrays and objects
def _array(leaf: Array, part: Part) -> Schema:
    first = leaf.first if leaf.high is None else leaf.first[: leaf.high]
    shown = [*takewhile(lambda item: item is not False, map(part, first))]
    rest = part(leaf.rest) if len(shown) == len(first) and leaf.high != len(first) else False
    found: Schema = {"type": "array"}
    if shown:
        found["prefixItems"] = [_value(item) for item in shown]
    found["items"] = rest is not False and _value(rest)
    if leaf.low:
        found["minItems"] = leaf.low
    if leaf.high is not None and rest is not False:
        found["maxItems"] = leaf.high
    return found


def _closed(leaf: Object, part: Part) -> Schema:
    """An object of the properties that are named, and no others."""
    if leaf.patterns or isinstance(part(leaf.rest), dict):
        raise _unserved(
            leaf,
            "'additionalProperties' with a schema, 'patternProperties' or 'propertyNames' beside 'properties': a name "
            "can be written in several ways",
            "additionalProperties", "patternProperties", "propertyNames",
        )  # fmt: skip
    parts = {name: part(conditions) for name, conditions in leaf.properties}
    properties = {name: _value(one) for name, one in parts.items() if one is not False}
    if leaf.low > len(properties):
        raise Omitted(
            "xgrammar adds no property that 'properties' lacks, and 'minProperties' needs some"
        )
    return {
        "type": "object",
        "properties": properties,
        "required": sorted(leaf.required),
        "additionalProperties": False,
    }


def _open(leaf: Object, part: Part) -> Schema:
    """An object with any names, or those that one expression matches."""
    names, inner = ANY_TEXT, part(leaf.rest)
    if leaf.patterns:
        (node, conditions), *others = leaf.patterns
        if others or inner is not False:
            raise _unserved(leaf, "'patternProperties' beside other names", "patternProperties")
        names = {"type": "string", "pattern": written(node, in_json=True) or "()"}
        inner = part(conditions)
    if inner is False:
        return {"type": "object", "additionalProperties": False}
    if leaf.low > 1:
        raise _unserved(
            leaf, "'minProperties' above 1 for names that are free, since one may be repeated", "minProperties"
        )  # fmt: skip
    return {"type": "object", "additionalProperties": _value(inner), "propertyNames": names}


def _unserved(leaf: Object, what: str, *keywords: str) -> GrammarError:
    """Error for a keyword that xgrammar does not enforce, with its place in the schema."""
    path, keyword = leaf.source(*keywords)
    return GrammarError(
        f"xgrammar does not enforce {what}; leave it out, {ELSEWHERE}",
        pointer(path),
        keyword or None,
    )
