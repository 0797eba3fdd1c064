"""Schemas by keyword and draft, each with values that satisfy it and values that do not.

Properties are in the order of the schema: a grammar writes them in no other.
"""

from __future__ import annotations

from typing import Any, NamedTuple

DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_6 = "http://json-schema.org/draft-06/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"


class Keyword(NamedTuple):
    """`schema` of one draft; `valid` and `invalid` values, all written with ASCII characters."""

    schema: dict[str, Any]
    valid: list[Any]
    invalid: list[Any]
    draft: str = DRAFT_2020


class Refused(NamedTuple):
    """A schema that no grammar holds; `path` of the part that is at fault, and `words` of the error."""

    schema: dict[str, Any]
    path: str
    words: str


TEXT = {"type": "string"}
WHOLE = {"type": "integer"}
PAIR = {"properties": {"a": TEXT, "b": WHOLE}, "required": ["a"], "additionalProperties": False}
NAMED = {"type": "object", "additionalProperties": False}
LIST = {"type": "array"}

SERVED = {
    # ------------------------------------------------------------------ any value
    "type": Keyword({"type": ["integer", "null"]}, [1, None], [1.5, "1", True]),
    "type integer beside number": Keyword({"type": ["integer", "number"]}, [1, 1.5], ["1"]),
    "enum": Keyword({"enum": ["a", 1, None, [1, "x"]]}, ["a", 1, None, [1, "x"]], ["b", 2, [1]]),
    "enum with type": Keyword({"type": "string", "enum": ["a", 1]}, ["a"], [1, "b"]),
    "enum of objects": Keyword({"enum": [{"a": [True]}]}, [{"a": [True]}], [{}, {"a": [False]}]),
    "const": Keyword({"const": "a"}, ["a"], ["b", 1]),
    "const 0 is no false": Keyword({"const": 0}, [0], [False, 1]),
    "const object": Keyword({"const": {"a": 1, "b": []}}, [{"a": 1, "b": []}], [{"a": 1}]),
    "annotations": Keyword(
        {"title": "t", "description": "d", "default": 1, "examples": [1], "x-order": 1, "errorMessage": {"type": "no"},
         "ui:widget": "w", "markdownDescription": "*m*", "type": "integer"}, [1], ["a"],
    ),
    # ------------------------------------------------------------------ numbers
    "minimum": Keyword({"type": "integer", "minimum": -2}, [-2, 0, 12], [-3, "a"]),
    "maximum": Keyword({"type": "number", "maximum": 2.5}, [2.5, -100], [2.6, 3]),
    "exclusiveMinimum": Keyword({"type": "integer", "exclusiveMinimum": 3}, [4, 40], [3, 2]),
    "exclusiveMaximum": Keyword({"type": "number", "exclusiveMaximum": 3}, [2.9, 2], [3, 3.1]),
    "exclusiveMinimum as a flag": Keyword(
        {"type": "integer", "minimum": 3, "exclusiveMinimum": True}, [4], [3], DRAFT_4
    ),
    "exclusiveMaximum false as a flag": Keyword(
        {"type": "integer", "maximum": 3, "exclusiveMaximum": False}, [3], [4], DRAFT_4
    ),
    "multipleOf": Keyword({"type": "integer", "multipleOf": 5}, [0, 15], [3, 16]),
    "minimum without type": Keyword({"minimum": 5}, [5, "a", None, [], {}], [4]),
    # ------------------------------------------------------------------ texts
    "minLength": Keyword({"type": "string", "minLength": 2}, ["ab", "abc"], ["a", ""]),
    "maxLength": Keyword({"type": "string", "maxLength": 2}, ["ab", ""], ["abc"]),
    "pattern": Keyword({"type": "string", "pattern": "^a.c$"}, ["abc"], ["ac", "abcd"]),
    "pattern anywhere": Keyword({"type": "string", "pattern": "b+"}, ["abc", "b"], ["ac"]),
    "pattern with length": Keyword(
        {"type": "string", "pattern": "^[ab]*$", "minLength": 2, "maxLength": 3}, ["ab", "aab"], ["a", "abab", "ac"]
    ),
    "two patterns": Keyword(
        {"type": "string", "allOf": [{"pattern": "a"}, {"pattern": "b"}]}, ["ab", "xbxax"], ["a", "b"]
    ),
    "format date": Keyword({"type": "string", "format": "date"}, ["2024-02-29"], ["2024-2-3"]),
    "format uuid": Keyword(
        {"type": "string", "format": "uuid"}, ["2eb8aa08-aa98-11ea-b4aa-73b441d16380"], ["2eb8aa08"]
    ),
    "format ipv4": Keyword({"type": "string", "format": "ipv4"}, ["127.0.0.1"], ["256.0.0.1"]),
    "format unknown": Keyword({"type": "string", "format": "color"}, ["red"], [1]),
    "pattern without type": Keyword({"pattern": "^a$"}, ["a", 1, None], ["b"]),
    # ------------------------------------------------------------------ arrays
    "items": Keyword({**LIST, "items": WHOLE}, [[], [1, 2]], [[1, "a"], 1]),
    "items false": Keyword({**LIST, "items": False}, [[]], [[1]]),
    "prefixItems": Keyword(
        {**LIST, "prefixItems": [TEXT, WHOLE]}, [[], ["a"], ["a", 1], ["a", 1, None]], [[1], ["a", "b"]]
    ),
    "prefixItems and items": Keyword(
        {**LIST, "prefixItems": [TEXT], "items": WHOLE}, [["a"], ["a", 1]], [["a", "b"], [1]]
    ),
    "items as a list": Keyword({**LIST, "items": [TEXT, WHOLE]}, [["a", 1, None]], [[1]], DRAFT_7),
    "additionalItems": Keyword(
        {**LIST, "items": [TEXT], "additionalItems": False}, [[], ["a"]], [["a", "b"], [1]], DRAFT_7
    ),
    "minItems": Keyword({**LIST, "minItems": 2}, [[1, 2]], [[1], []]),
    "maxItems": Keyword({**LIST, "maxItems": 1}, [[], [1]], [[1, 2]]),
    "minItems above the items there are": Keyword(
        {"anyOf": [{**LIST, "prefixItems": [WHOLE], "items": False, "minItems": 2}, TEXT]}, ["a"], [[1]]
    ),
    "uniqueItems of one item": Keyword({**LIST, "maxItems": 1, "uniqueItems": True}, [[], [1]], [[1, 1]]),
    "uniqueItems of few values": Keyword(
        {**LIST, "items": {"enum": ["a", "b"]}, "uniqueItems": True}, [[], ["a"], ["b", "a"]], [["a", "a"], ["c"]]
    ),
    "uniqueItems false": Keyword({**LIST, "uniqueItems": False}, [[1, 1]], [1]),
    "unevaluatedItems": Keyword(
        {**LIST, "prefixItems": [TEXT], "unevaluatedItems": False}, [[], ["a"]], [["a", "b"]]
    ),
    # ------------------------------------------------------------------ objects
    "properties": Keyword({"type": "object", **PAIR}, [{"a": "x"}, {"a": "x", "b": 1}], [{}, {"a": 1}]),
    "properties without type": Keyword(PAIR, [{"a": "x"}, 1, "a"], [{}, {"b": 1}]),
    "additional properties are allowed": Keyword(
        {"type": "object", "properties": {"a": TEXT}}, [{"a": "x"}, {"b": 1}, {}], [{"a": 1}]
    ),
    "a prefix of a property's name": Keyword(
        {"type": "object", "properties": {"ab": TEXT}}, [{"a": 1}, {"abc": 1}, {"ab": "x"}], [{"ab": 1}]
    ),
    "additionalProperties": Keyword(
        {"type": "object", "properties": {"a": TEXT}, "additionalProperties": WHOLE},
        [{"a": "x", "b": 1}], [{"b": "x"}, {"a": 1}],
    ),
    "required without a property": Keyword(
        {"type": "object", "required": ["a"]}, [{"a": 1}], [{}, {"b": 1}]
    ),
    "required by a pattern": Keyword(
        {**NAMED, "patternProperties": {"^a$": TEXT}, "required": ["a"]}, [{"a": "x"}], [{}, {"a": 1}, {"b": "x"}]
    ),
    "required by an open pattern": Keyword(
        {**NAMED, "patternProperties": {"^a": TEXT}, "required": ["ab"]},
        [{"ab": "x"}], [{}, {"ab": 1}, {"a": "x"}],
    ),
    "patternProperties": Keyword(
        {"type": "object", "patternProperties": {"^x-": TEXT}}, [{"x-a": "y"}, {"a": 1}], [{"x-a": 1}]
    ),
    "patternProperties with a finite pattern": Keyword(
        {**NAMED, "patternProperties": {"^(a|b)$": WHOLE}}, [{}, {"a": 1}, {"a": 1, "b": 2}], [{"c": 1}, {"a": "x"}]
    ),
    "patternProperties beside a property that they match": Keyword(
        {**NAMED, "properties": {"x-a": WHOLE}, "patternProperties": {"^x-": {"minimum": 3}}},
        [{"x-a": 3}, {"x-b": "y"}], [{"x-a": 2}, {"x-a": 3.5}],
    ),
    "two patterns that share names": Keyword(
        {**NAMED, "patternProperties": {"^a": {"type": "number"}, "b$": {"minimum": 2}}},
        [{"a": 1}, {"ab": 2}, {"b": "x"}, {"ab": 2.5, "a": 0}], [{"ab": 1}, {"ab": "x"}, {"a": "x"}, {"c": 1}],
    ),
    "two patterns with one schema": Keyword(
        {**NAMED, "patternProperties": {"^a": WHOLE, "b$": WHOLE}}, [{"ab": 1}, {"a": 1}], [{"ab": "x"}, {"c": 1}]
    ),
    "propertyNames": Keyword(
        {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}}, [{}, {"ab": 1}], [{"A": 1}]
    ),
    "propertyNames enum": Keyword(
        {"type": "object", "propertyNames": {"enum": ["a", "b"]}}, [{}, {"a": 1}, {"a": 1, "b": 2}], [{"c": 1}]
    ),
    "propertyNames of a length and an expression": Keyword(
        {"type": "object", "propertyNames": {"pattern": "^[a-z]+$", "minLength": 2, "maxLength": 3}},
        [{}, {"ab": 1, "abc": 2}], [{"a": 1}, {"abcd": 1}, {"aB": 1}],
    ),
    "propertyNames of two expressions": Keyword(
        {"type": "object", "propertyNames": {"pattern": "^a", "allOf": [{"pattern": "b$"}, {"not": {"const": "ab"}}]}},
        [{}, {"axb": 1}], [{"ab": 1}, {"a": 1}, {"b": 1}],
    ),
    "propertyNames beside patternProperties": Keyword(
        {**NAMED, "propertyNames": {"pattern": "^a"}, "patternProperties": {".": WHOLE, "b$": {"minimum": 3}}},
        [{}, {"a": 1, "ab": 3}], [{"b": 3}, {"ab": 2}, {"ab": "x"}],
    ),
    "propertyNames beside properties of other names": Keyword(
        {"type": "object", "properties": {"x": TEXT, "a": WHOLE}, "patternProperties": {"^[xy]": {}},
         "propertyNames": {"pattern": "^[xa]"}, "additionalProperties": {"type": "null"}},
        [{"x": "t", "a": 1, "xy": 2, "ab": None}], [{"y": 1}, {"ab": 1}, {"x": 1}],
    ),
    "minProperties": Keyword({"type": "object", "minProperties": 1}, [{"a": 1}], [{}]),
    "minProperties of named ones": Keyword(
        {**NAMED, "properties": {"a": WHOLE, "b": WHOLE}, "minProperties": 1}, [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}],
        [{}],
    ),
    "maxProperties": Keyword(
        {**NAMED, "properties": {"a": WHOLE, "b": WHOLE}, "maxProperties": 1}, [{}, {"a": 1}, {"b": 1}],
        [{"a": 1, "b": 1}],
    ),
    "dependentRequired": Keyword(
        {**NAMED, "properties": {"a": WHOLE, "b": WHOLE}, "dependentRequired": {"a": ["b"]}},
        [{}, {"b": 1}, {"a": 1, "b": 1}], [{"a": 1}],
    ),
    "dependentSchemas": Keyword(
        {**NAMED, "properties": {"a": WHOLE, "b": WHOLE},
         "dependentSchemas": {"a": {"properties": {"b": {"const": 2}}}}},
        [{"b": 1}, {"a": 1, "b": 2}], [{"a": 1, "b": 1}],
    ),
    "dependencies": Keyword(
        {**NAMED, "properties": {"a": WHOLE, "b": WHOLE}, "dependencies": {"a": ["b"]}}, [{"b": 1}, {"a": 1, "b": 1}],
        [{"a": 1}], DRAFT_7,
    ),
    "unevaluatedProperties": Keyword(
        {"type": "object", "allOf": [{"properties": {"a": WHOLE}}], "properties": {"b": WHOLE},
         "unevaluatedProperties": False},
        [{"b": 1, "a": 1}, {}], [{"c": 1}],
    ),
    "a property named like a keyword": Keyword(
        {**NAMED, "properties": {"not": TEXT, "$ref": WHOLE}}, [{"not": "a", "$ref": 1}], [{"not": 1}]
    ),
    # ------------------------------------------------------------------ combinations
    "anyOf": Keyword({"anyOf": [WHOLE, {"type": "string", "maxLength": 1}]}, [1, "a"], ["ab", None]),
    "anyOf beside keywords": Keyword(
        {"type": "string", "anyOf": [{"minLength": 3}, {"pattern": "^a"}]}, ["abc", "a", "bcd"], ["b", 1]
    ),
    "oneOf": Keyword({"oneOf": [{"type": "integer", "maximum": 5}, {"type": "integer", "minimum": 3}]}, [2, 6], [4]),
    "oneOf by a constant": Keyword(
        {"oneOf": [
            {"type": "object", "properties": {"k": {"const": name}, name: WHOLE}, "required": ["k", name],
             "additionalProperties": False} for name in ("a", "b")
        ]},
        [{"k": "a", "a": 1}, {"k": "b", "b": 1}], [{"k": "a", "b": 1}, {"k": "c"}],
    ),
    "oneOf by what is required": Keyword(
        {**NAMED, "properties": {"a": WHOLE, "b": WHOLE}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": 1}, {"b": 1}], [{}, {"a": 1, "b": 1}],
    ),
    "allOf": Keyword({"allOf": [WHOLE, {"minimum": 2}, {"maximum": 4}]}, [2, 4], [1, 5, "a"]),
    "allOf of objects": Keyword(
        {"allOf": [{"properties": {"a": WHOLE}, "required": ["a"]}, {"properties": {"b": TEXT}}], "type": "object"},
        [{"a": 1, "b": "x"}, {"a": 1}], [{"b": "x"}, {"a": "x"}],
    ),
    "not": Keyword({"type": "string", "not": {"enum": ["a", "b"]}}, ["c", "ab"], ["a", "b"]),
    "not of a type": Keyword({"not": {"type": "object"}}, [1, "a", []], [{}]),
    "not of items": Keyword(
        {**LIST, "maxItems": 2, "not": {"prefixItems": [True, {"const": 1}], "items": {"type": "null"}}},
        [["a", 2]], [[], ["a"], ["a", 1]],
    ),
    "oneOf by an item": Keyword(
        {**LIST, "oneOf": [{"items": [True, {"const": 1}]}, {"items": [True, {"const": 2}]}], "additionalItems": False},
        [["a", 1], ["b", 2]], [["a"], [], ["a", 3]], DRAFT_7,
    ),
    "not of a pattern": Keyword(
        {"type": "string", "not": {"pattern": "^[ab]+$"}}, ["", "c", "abc"], ["a", "ba", "a\n"]
    ),
    "not of a pattern that is read in several ways": Keyword(
        {"type": "string", "not": {"pattern": "^\\d.$"}}, ["", "123", "a1"], ["12", "1a", "1\r", "1a\n"]
    ),
    "oneOf by a pattern": Keyword(
        {"type": "string", "oneOf": [{"pattern": "^a"}, {"pattern": "b$"}]}, ["a", "cb", "axb!"], ["ab", "c", ""]
    ),
    "not required": Keyword(
        {**NAMED, "properties": {"a": WHOLE, "b": WHOLE}, "not": {"required": ["a", "b"]}}, [{}, {"a": 1}, {"b": 1}],
        [{"a": 1, "b": 1}],
    ),
    "if": Keyword(
        {**NAMED, "properties": {"k": {"enum": ["a", "b"]}, "v": WHOLE}, "required": ["k"],
         "if": {"properties": {"k": {"const": "a"}}}, "then": {"required": ["v"]}},
        [{"k": "a", "v": 1}, {"k": "b"}], [{"k": "a"}],
    ),
    "if and else": Keyword(
        {"type": "integer", "if": {"minimum": 10}, "then": {"multipleOf": 10}, "else": {"maximum": 5}}, [20, 5, -1],
        [15, 7],
    ),
    # ------------------------------------------------------------------ references
    "$ref": Keyword({"$defs": {"n": WHOLE}, **LIST, "items": {"$ref": "#/$defs/n"}}, [[1]], [["a"]]),
    "$ref to the root": Keyword(
        {**NAMED, "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}},
        [{}, {"next": {"next": None}}], [{"next": 1}],
    ),
    "$ref with siblings": Keyword(
        {"$defs": {"n": WHOLE}, "$ref": "#/$defs/n", "minimum": 3}, [3], [2, "a"], DRAFT_2019
    ),
    "$ref without siblings": Keyword(
        {"definitions": {"n": WHOLE}, "$ref": "#/definitions/n", "minimum": 3}, [2], ["a"], DRAFT_7
    ),
    "$ref into a group": Keyword(
        {"definitions": {"group": {"type": {"type": "string"}}}, "$ref": "#/definitions/group/type"}, ["a"], [1]
    ),
    "$ref to an escaped name": Keyword({"$defs": {"a/b~c": WHOLE}, "$ref": "#/$defs/a~1b~0c"}, [1], ["a"]),
    "$anchor": Keyword({"$defs": {"n": {"$anchor": "here", **WHOLE}}, "$ref": "#here"}, [1], ["a"]),
    "$id": Keyword(
        {"$id": "http://example.com/a", "$defs": {"n": {"$id": "b", **WHOLE}}, "$ref": "b"}, [1], ["a"]
    ),
}  # fmt: skip

REFUSED = {
    "uniqueItems": Refused({"items": {"type": "array", "uniqueItems": True}}, "/items", "uniqueItems"),
    "contains": Refused({"properties": {"a": {"type": "array", "contains": WHOLE}}}, "/properties/a", "contains"),
    "look-ahead": Refused({"items": {"type": "string", "pattern": "(?=a)"}}, "/items", "look-around"),
    "format regex": Refused({"items": {"format": "regex"}}, "/items", "regex"),
    "many patterns that share names": Refused(
        {**NAMED, "patternProperties": {"a": WHOLE, "b": TEXT, "c": {}, "d": {"type": "null"}}}, "",
        "two expressions of 'patternProperties'",
    ),
    "beside an innocent additionalProperties": Refused(
        {**NAMED, "properties": {"a": {**NAMED, "properties": {"b": {"type": "array", "uniqueItems": True}}}}},
        "/properties/a/properties/b", "uniqueItems",
    ),
    "not of a format": Refused(
        {"type": "string", "not": {"format": "date"}}, "", "'format': 'date' .at /not., which 'not' needs"
    ),
    "reference to nothing": Refused({"items": {"$ref": "#/$defs/a"}}, "/items", r"'\$defs', which does not exist"),
    "remote reference": Refused({"items": {"$ref": "http://example.com/a"}}, "/items", "nothing is retrieved"),
    "unknown type": Refused({"items": {"type": "strin"}}, "/items", "'strin'; it must be one of"),
    "wrong bound": Refused({"items": {"minLength": -1}}, "/items", "'minLength' is a whole number from 0 on, not -1"),
    "below a reference": Refused(
        {"$defs": {"a": {"properties": {"b": {"minItems": "x"}}}}, "items": {"$ref": "#/$defs/a"}},
        "/$defs/a/properties/b", "'minItems' is a whole number",
    ),
}  # fmt: skip
