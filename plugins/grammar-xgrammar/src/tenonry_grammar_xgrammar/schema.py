"""A JSON schema as xgrammar gets it: written anew from the keywords of which it enforces all they say. Pure.

xgrammar passes over keywords that it does not know, over those that stand beside `$ref`, `const`, `enum`, `anyOf` and
`allOf`, and over some where others stand beside them. Here nothing gets to it that is not written below: what cannot
be is an error with its path. Where a schema leaves open what an object may have besides its properties, it has nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tenonry_grammar_xgrammar import numbers, texts
from tenonry_grammar_xgrammar.references import References, rules_of
from tenonry_grammar_xgrammar.unions import overlapping
from tenonry_grammar_xgrammar.write import ANY_JSON_TEXT
from tenonry_grammars.base import GrammarError
from tenonry_grammars.schema import MAX_DEPTH, pointer

Path = tuple[str, ...]
Schema = dict[str, Any]

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
# What xgrammar enforces, by the type of the value of which a keyword says something.
ARRAYS = frozenset({"prefixItems", "items", "minItems", "maxItems"})
OBJECTS = frozenset(
    {
        "properties",
        "required",
        "additionalProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
    }
)
ENFORCED: dict[str, frozenset[str]] = {
    "number": numbers.KEYWORDS,
    "string": texts.KEYWORDS,
    "array": ARRAYS,
    "object": OBJECTS,
}
# Each of these says all of a schema: xgrammar passes over everything beside it.
ALONE = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
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
ELSEWHERE = "leave it out, or start with --grammar-backend llguidance"


def rewritten(schema: Any) -> Schema:
    """The same for xgrammar. Raises GrammarError with the path of what it would not enforce."""
    writer = _Writer(schema)
    return writer.whole()


class _Writer:
    """Writes the root, then every schema to which a reference leads, each once, under a name of its own."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._references = References(root)
        self._has_shared = False

    def whole(self) -> Schema:
        body = self.part((), self._root)
        definitions: dict[str, Schema] = {}
        while self._references.waiting:
            name, path, schema = self._references.waiting.pop()
            definitions[name] = self.part(path, schema)
        if self._has_shared:
            definitions |= SHARED
        return {**body, "$defs": definitions} if definitions else body

    def part(self, path: Path, schema: Any, depth: int = 0) -> Schema:
        """One schema, at this path of the user's."""
        if depth > MAX_DEPTH:
            raise GrammarError(f"schemas are nested more than {MAX_DEPTH} deep", pointer(path))
        if schema is True:
            return self._any()
        if schema is False:
            raise GrammarError("nothing satisfies the schema false", pointer(path))
        if not isinstance(schema, dict):
            raise GrammarError(
                f"a schema is an object, not a {type(schema).__name__}", pointer(path)
            )
        rules = rules_of(schema)
        for keyword in ALONE:
            if keyword in rules:
                return self._alone(path, keyword, rules, depth)
        return self._typed(path, rules, depth)

    def _any(self) -> Schema:
        self._has_shared = True
        return dict(ANY)

    def _text(self, path: Path, rules: Schema) -> Schema:
        if texts.KEYWORDS & set(rules):
            return texts.string(path, rules)
        self._has_shared = True
        return dict(TEXT)

    # ------------------------------------------------------------------ what says all
    def _alone(self, path: Path, keyword: str, rules: Schema, depth: int) -> Schema:
        has_values = keyword in {"const", "enum"}
        beside = set(rules) - {keyword} - ({"type"} if has_values else set())
        if beside:
            raise GrammarError(
                f"xgrammar does not enforce {_names(beside)} beside '{keyword}'; {ELSEWHERE}",
                pointer(path),
            )
        value = rules[keyword]
        if keyword == "$ref":
            return {"$ref": f"#/$defs/{self._references.name(path, value)}"}
        if has_values:
            return _values(path, keyword, rules)
        if not isinstance(value, list) or not value:
            raise GrammarError(f"'{keyword}' is a list of schemas that is not empty", pointer(path))
        if keyword == "allOf" and len(value) > 1:
            raise GrammarError(
                f"xgrammar does not enforce 'allOf' with {len(value)} schemas; write them as one, or start with "
                "--grammar-backend llguidance",
                pointer(path),
            )
        if keyword == "oneOf":
            self._check_exclusive(path, value)
        options = [
            self.part((*path, keyword, str(place)), option, depth + 1)
            for place, option in enumerate(value)
            if option is not False
        ]
        if not options:
            raise GrammarError("nothing satisfies it: every schema is false", pointer(path))
        return options[0] if len(options) == 1 else {"anyOf": options}

    def _check_exclusive(self, path: Path, options: list[Any]) -> None:
        """`oneOf` becomes `anyOf`: no value may satisfy two of the schemas."""
        resolved = []
        for place, option in enumerate(options):
            schema = option
            if isinstance(option, dict) and set(rules_of(option)) == {"$ref"}:
                _, schema = self._references.target((*path, "oneOf", str(place)), option["$ref"])
            if option is not False:
                resolved.append(schema)
        places = overlapping(resolved)
        if places is not None:
            raise GrammarError(
                "xgrammar does not enforce 'oneOf' where a value may satisfy two of the schemas, such as "
                f"{places[0]} and {places[1]}: give them other types, or a required property with another 'const'; or "
                "use 'anyOf', or start with --grammar-backend llguidance",
                pointer(path),
            )

    # ------------------------------------------------------------------ types
    def _typed(self, path: Path, rules: Schema, depth: int) -> Schema:
        types = _types(path, rules)
        known = {"type"}
        for name in types:
            known |= ENFORCED.get("number" if name == "integer" else name, frozenset())
        vacuous = set().union(*ENFORCED.values()) - known
        unknown = set(rules) - known - vacuous
        if unknown:
            raise GrammarError(
                f"xgrammar does not enforce {_names(unknown)}; {ELSEWHERE}", pointer(path)
            )
        writers: dict[str, Callable[[Path, Schema], Schema]] = {
            "integer": numbers.integer,
            "number": numbers.number,
            "string": self._text,
            "array": lambda path, rules: self._array(path, rules, depth),
            "object": lambda path, rules: self._object(path, rules, depth),
        }
        options = [
            writers[name](path, rules) if name in writers else {"type": name} for name in types
        ]
        if not options:
            return self._any()
        return options[0] if len(options) == 1 else {"anyOf": options}

    def _array(self, path: Path, rules: Schema, depth: int) -> Schema:
        low = texts.count(path, rules, "minItems") or 0
        high = texts.count(path, rules, "maxItems")
        first = rules.get("prefixItems", [])
        rest = rules.get("items", True)
        if not isinstance(first, list) or isinstance(rest, list):
            raise GrammarError(
                "'prefixItems' is a list of schemas, and 'items' a schema", pointer(path)
            )
        shown = first if high is None else first[:high]
        found: Schema = {"type": "array"}
        if shown:
            found["prefixItems"] = [
                self.part((*path, "prefixItems", str(place)), item, depth + 1)
                for place, item in enumerate(shown)
            ]
        is_closed = rest is False or high == len(shown)
        found["items"] = False if is_closed else self.part((*path, "items"), rest, depth + 1)
        if low > (len(shown) if is_closed else high or low):
            raise GrammarError(
                f"nothing satisfies it: an array has at least {low} items", pointer(path)
            )
        if low:
            found["minItems"] = low
        if high is not None and not is_closed:
            found["maxItems"] = high
        return found

    def _object(self, path: Path, rules: Schema, depth: int) -> Schema:
        properties = rules.get("properties", {})
        required = rules.get("required", [])
        if not isinstance(properties, dict) or not _is_names(required):
            raise GrammarError(
                "'properties' is an object, and 'required' a list of names", pointer(path)
            )
        missing = set(required) - set(properties)
        if missing:
            raise GrammarError(
                f"xgrammar does not enforce 'required' for {_names(missing)}, which 'properties' lacks; add it there",
                pointer(path),
            )
        if properties:
            found = self._closed(path, rules, depth)
        else:
            found = self._open(path, rules, depth)
        low = texts.count(path, rules, "minProperties")
        high = texts.count(path, rules, "maxProperties")
        if not properties and (low or 0) > 1 and found["additionalProperties"] is not False:
            raise GrammarError(
                "xgrammar does not enforce 'minProperties' above 1 for names that are free, since one may be repeated",
                pointer(path),
            )
        if low:
            found["minProperties"] = low
        if high is not None:
            found["maxProperties"] = high
        return found

    def _closed(self, path: Path, rules: Schema, depth: int) -> Schema:
        """An object of the properties that are named, and no others."""
        others = rules.get("additionalProperties", False)
        if others not in (True, False, {}) or "propertyNames" in rules:
            raise GrammarError(
                "xgrammar does not enforce 'additionalProperties' with a schema, or 'propertyNames', beside "
                f"'properties': a name can be written in several ways; {ELSEWHERE}",
                pointer(path),
            )
        properties = rules["properties"]
        required = rules.get("required", [])
        kept = {
            name: schema
            for name, schema in properties.items()
            if schema is not False or name in required
        }
        return {
            "type": "object",
            "properties": {
                name: self.part((*path, "properties", name), schema, depth + 1)
                for name, schema in kept.items()
            },
            "required": sorted(set(required)),
            "additionalProperties": False,
        }

    def _open(self, path: Path, rules: Schema, depth: int) -> Schema:
        """An object with any names."""
        others = rules.get("additionalProperties", True)
        found: Schema = {"type": "object", "additionalProperties": False}
        if others is not False:
            where = (*path, "additionalProperties")
            found["additionalProperties"] = self.part(where, others, depth + 1)
        names = rules.get("propertyNames", True)
        if others is not False and names is not True:
            where = (*path, "propertyNames")
            if not isinstance(names, dict) or set(rules_of(names)) - texts.KEYWORDS - {"type"}:
                raise GrammarError(
                    f"of names xgrammar enforces {_names(texts.KEYWORDS)} only", pointer(where)
                )
            types = names.get("type", "string")
            if "string" not in (types if isinstance(types, list) else [types]):
                raise GrammarError(
                    "nothing satisfies it: names are of the type 'string'", pointer(where)
                )
            found["propertyNames"] = texts.string(where, rules_of(names))
        elif others is not False:
            found["propertyNames"] = ANY_TEXT
        return found


def _types(path: Path, rules: Schema) -> list[str]:
    """The types of a schema, or those of which its keywords say something; none for one without any."""
    if "type" not in rules:
        return [name for name, keywords in ENFORCED.items() if keywords & set(rules)]
    given = rules["type"]
    types = given if isinstance(given, list) else [given]
    if not types or not all(isinstance(name, str) and name in TYPES for name in types):
        raise GrammarError(
            f"'type' is {given!r}; it must be one of {', '.join(TYPES)}", pointer(path)
        )
    return list(dict.fromkeys(types))


def _values(path: Path, keyword: str, rules: Schema) -> Schema:
    """`const` and `enum`, whose values have to be of the type beside them."""
    values = rules["enum"] if keyword == "enum" else [rules["const"]]
    if not isinstance(values, list) or not values:
        raise GrammarError("'enum' is a list that is not empty", pointer(path))
    types = _types(path, rules) if "type" in rules else list(TYPES)
    for value in values:
        numbers.check_value(path, value)
        if not any(numbers.is_of(value, name) for name in types):
            raise GrammarError(
                f"the value {value!r} is none of the type {rules['type']!r}", pointer(path)
            )
    return {"enum": values}


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _names(keywords: set[str] | frozenset[str]) -> str:
    return ", ".join(f"'{name[:64]}'" for name in sorted(keywords)[:8])
