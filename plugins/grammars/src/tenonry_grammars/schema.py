"""Errors of a JSON schema and their location: the part that a backend cannot compile, or one nested too deep. Pure.

A keyword that JSON Schema does not define is an annotation and is ignored, as by every validator.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from tenonry_grammars.base import GrammarError

# Where further schemas stand in a schema: below names, in lists, and as such.
BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
IN_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
PLAIN = frozenset({
    "items", "additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties", "contains",
    "propertyNames", "not", "if", "then", "else", "contentSchema",
})  # fmt: skip
RULES = frozenset({
    "type", "enum", "const", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum", "maxLength",
    "minLength", "pattern", "format", "maxItems", "minItems", "uniqueItems", "maxContains", "minContains",
    "maxProperties", "minProperties", "required", "dependentRequired", "dependencies", "$ref", "$dynamicRef",
    "$recursiveRef",
})  # fmt: skip
# Places for schemas without effect where they are: only references lead there.
DEFINITIONS = frozenset({"$defs", "definitions"})
# What restricts values; all other keywords are annotations, or name and place a schema.
RESTRICTING = (BY_NAME | IN_LISTS | PLAIN | RULES) - DEFINITIONS - {"contentSchema"}
MAX_DEPTH = 64  # of schemas within schemas
MAX_TRIALS = 200  # parts compiled alone to find the one that cannot be
ROOT = "root"


def parse_schema(text: str) -> Any:
    """The schema as values. Raises GrammarError for text that is no JSON, or no schema."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the schema is no JSON: {error}") from None
    if not isinstance(schema, dict | bool):
        raise GrammarError(f"the schema is a {type(schema).__name__}; it must be an object")
    return schema


def embedded_schemas(grammar: str) -> Iterator[Any]:
    """Schemas behind `%json` in Lark's notation; what is no JSON there is left to the backend."""
    decoder = json.JSONDecoder()
    for found in re.finditer(r"%json\s*", grammar):
        with contextlib.suppress(ValueError, RecursionError):
            schema, _ = decoder.raw_decode(grammar, found.end())
            yield schema


def check_depth(schema: Any) -> None:
    """Raises GrammarError for schemas nested too deep, with the path."""
    for path, _ in parts(schema):
        if len(path) > 2 * MAX_DEPTH:
            raise GrammarError(f"{pointer(path)}: schemas are nested more than {MAX_DEPTH} deep")


def parts(schema: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every schema within `schema`, itself first, with its path; those in a name's place are not followed."""
    waiting: list[tuple[tuple[str, ...], Any]] = [((), schema)]
    while waiting:
        path, part = waiting.pop()
        yield path, part
        waiting.extend(reversed(list(children(path, part))))


def children(path: tuple[str, ...], part: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The schemas directly below one."""
    if not isinstance(part, dict):
        return
    for keyword, value in part.items():
        if keyword in BY_NAME and isinstance(value, dict):
            for name, below in value.items():
                yield (*path, keyword, name), below
        elif keyword in IN_LISTS and isinstance(value, list):
            for index, below in enumerate(value):
                yield (*path, keyword, str(index)), below
        elif keyword in PLAIN and isinstance(value, dict | bool):
            yield (*path, keyword), value


def failing_part(schema: Any, compiles: Callable[[str], bool]) -> str:
    """The pointer of the smallest schema within `schema` that does not compile alone; "" for none but the whole.

    References still lead into the whole schema.
    """
    whole = _moved(schema)
    path: tuple[str, ...] = ()
    part = schema
    trials = 0
    while True:
        for below, inner in children(path, part):
            if inner is False:  # which nothing satisfies, as it should
                continue
            trials += 1
            if trials > MAX_TRIALS:
                return pointer(path)
            alone = {"$ref": f"#/$defs/{ROOT}{pointer(below)}", "$defs": {ROOT: whole}}
            if not compiles(json.dumps(alone)):
                path = below
                part = inner
                break
        else:
            return pointer(path)


def part_at(schema: Any, path: str) -> Any:
    """The part of a schema that a JSON pointer leads to; None where it leads nowhere."""
    for step in path.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, list) and name.isdecimal() and int(name) < len(schema):
            schema = schema[int(name)]
        elif isinstance(schema, dict):
            schema = schema.get(name)
        else:
            return None
    return schema


def pointer(path: tuple[str, ...]) -> str:
    """A path as a JSON pointer, RFC 6901."""
    return "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in path)


def _moved(value: Any) -> Any:
    """Return the schema for a separate place in another one: references from its root lead there."""
    if isinstance(value, list):
        return [_moved(item) for item in value]
    if not isinstance(value, dict):
        return value
    moved = {name: _moved(item) for name, item in value.items()}
    target = moved.get("$ref")
    if isinstance(target, str) and target.startswith("#"):
        moved["$ref"] = f"#/$defs/{ROOT}{target[1:]}"
    return moved
