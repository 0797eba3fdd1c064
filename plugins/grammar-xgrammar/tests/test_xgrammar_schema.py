"""A schema is written anew from what xgrammar enforces, and all else is refused with its path; needs no xgrammar."""

from __future__ import annotations

import json

import pytest

from tenonry.sampling_params import StructuredOutput
from tenonry_grammar_xgrammar.schema import ALONE, ANY, ANY_TEXT, ENFORCED, SHARED, TEXT, rewritten
from tenonry_grammars.base import GrammarError
from tenonry_grammars.probing import check_spec
from tenonry_grammars.schema import MAX_DEPTH, RESTRICTING

A_TEXT = {"type": "string"}
BAD = [
    ({"not": {}}, "", "'not'"),
    ({"type": "array", "uniqueItems": True}, "", "'uniqueItems'"),
    ({"type": "array", "contains": {}}, "", "'contains'"),
    ({"items": [{}]}, "", "'items' a schema"),
    ({"type": "object", "patternProperties": {"a": {}}}, "", "'patternProperties'"),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, "", "'dependentRequired'"),
    ({"if": {}, "then": {}}, "", "'if', 'then'"),
    ({"oneOf": [{"type": "null"}, A_TEXT, {"enum": [1, "a"]}]}, "", "'oneOf' .* 1 and 2"),
    ({"oneOf": [{"const": 1}, {"enum": [2, 1.0]}]}, "", "0 and 1"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "", "0 and 1"),
    ({"oneOf": [{"$ref": "#/$defs/a"}, A_TEXT], "$defs": {"a": {}}}, "", "0 and 1"),
    ({"oneOf": [{"type": "object", "properties": {"k": {"const": each}}} for each in (1, 2)]}, "", "0 and 1"),
    ({"allOf": [A_TEXT, A_TEXT]}, "", "'allOf' with 2"),
    ({"$ref": "#/$defs/a", "type": "string", "$defs": {"a": {}}}, "", "'type' beside '\\$ref'"),
    ({"enum": [1], "minimum": 2}, "", "'minimum' beside 'enum'"),
    ({"anyOf": [A_TEXT], "required": ["a"]}, "", "'required' beside 'anyOf'"),
    ({"type": "string", "const": 1}, "", "none of the type 'string'"),
    ({"enum": []}, "", "not empty"),
    ({"enum": [2**63]}, "", "beyond 64 bits"),
    ({"const": {"a": [float("inf")]}}, "", "no number of JSON"),
    ({"anyOf": []}, "", "not empty"),
    ({"anyOf": [False]}, "", "every schema is false"),
    ({"type": "strin"}, "", "one of null, boolean"),
    ({"type": []}, "", "one of null, boolean"),
    ({"type": "number", "multipleOf": 2}, "", "'integer' only"),
    ({"type": "integer", "multipleOf": 0.5}, "", "whole numbers up to 1024"),
    ({"type": "integer", "multipleOf": 3, "minimum": 1}, "", "both bounds"),
    ({"type": "integer", "minimum": 1, "maximum": 0}, "", "nothing satisfies"),
    ({"type": "integer", "minimum": 2**63}, "", "beyond 64 bits"),
    ({"type": "integer", "minimum": True}, "", "is a number, not True"),
    ({"type": "string", "pattern": "a", "minLength": 1}, "", "one of 'pattern', 'format' and lengths"),
    ({"type": "string", "format": "regex"}, "", "the format 'regex' is not enforced"),
    ({"type": "string", "pattern": "(?=a)"}, "", "look-around"),
    ({"type": "string", "minLength": 2, "maxLength": 1}, "", "nothing satisfies"),
    ({"type": "string", "maxLength": -1}, "", "whole number from 0"),
    ({"type": "array", "minItems": 2, "maxItems": 1}, "", "at least 2 items"),
    ({"prefixItems": [{}], "items": False, "minItems": 2}, "", "at least 2 items"),
    ({"type": "object", "required": ["a"]}, "", "'a', which 'properties' lacks"),
    ({"properties": {"a": {}}, "additionalProperties": A_TEXT}, "", "beside 'properties'"),
    ({"properties": {"a": {}}, "propertyNames": A_TEXT}, "", "beside 'properties'"),
    ({"type": "object", "minProperties": 2}, "", "'minProperties' above 1"),
    ({"propertyNames": {"enum": ["a"]}}, "/propertyNames", "of names"),
    ({"propertyNames": {"type": "integer"}}, "/propertyNames", "nothing satisfies"),
    ({"type": "number", "minimum": 0.0078125}, "", "5 decimals at most; 'minimum' is 0.0078125"),
    ({"type": "number", "maximum": 1e16}, "", r"up to 1e\+15"),
    ({"$ref": "#/$defs/a"}, "", "does not exist"),
    ({"$ref": "http://example.com/a"}, "", "nothing is retrieved"),
    ({"$ref": "#a", "$defs": {"a": {"$anchor": "a"}}}, "", "nothing is retrieved"),
    ({"$ref": "#"}, "", "leads back to itself"),
    ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "/$defs/a", "back to itself"),
    (False, "", "false"),
    ({"properties": {"a": {"items": {"not": {}}}}}, "/properties/a/items", "'not'"),
    ({"properties": {"a/b": {"anyOf": [A_TEXT, {"not": {}}]}}}, "/properties/a~1b/anyOf/1", "'not'"),
    ({"$defs": {"n": {"not": {}}}, "items": {"$ref": "#/$defs/n"}}, "/$defs/n", "'not'"),
    ({"prefixItems": [{"not": {}}]}, "/prefixItems/0", "'not'"),
    ({"additionalProperties": {"not": {}}}, "/additionalProperties", "'not'"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "path", "message"), BAD, ids=lambda one: str(one)[:60])
def test_what_is_not_enforced_is_refused_with_its_path(schema, path, message):
    with pytest.raises(GrammarError, match=message) as caught:
        rewritten(schema)
    assert caught.value.path == path


def test_the_path_gets_to_the_user_without_other_trials():
    compiled = []

    class Backend:
        def compile(self, spec):
            compiled.append(spec)
            rewritten(json.loads(spec.json))

    schema = {"properties": {"a": {"not": {}}, "b": {"not": {}}}}
    with pytest.raises(GrammarError, match=r"^/properties/a: xgrammar does not enforce 'not'"):
        check_spec(Backend(), StructuredOutput(json=json.dumps(schema)))
    assert len(compiled) == 1


@pytest.mark.parametrize("keyword", sorted(RESTRICTING))
def test_every_keyword_of_json_schema_is_enforced_or_refused(keyword):
    """None is passed over: what is written holds it, or what it says."""
    known = set().union(*ENFORCED.values()) | {"type", *ALONE}
    if keyword in known:
        return
    for kind in ({}, {"type": "object"}, {"type": ["array", "string", "number"]}):
        with pytest.raises(GrammarError, match=keyword.replace("$", r"\$")):
            rewritten({**kind, keyword: {"a": A_TEXT}})


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        (True, ANY),
        ({"title": "T", "x-a": 1, "default": 1}, ANY),
        ({"type": "object"}, {"type": "object", "additionalProperties": ANY, "propertyNames": ANY_TEXT}),
        ({"type": ["string", "null"]}, {"anyOf": [TEXT, {"type": "null"}]}),
        ({"type": "string", "minimum": 3}, TEXT),
        ({"minimum": 3}, {"type": "number", "minimum": 3}),
        ({"type": "integer", "minimum": 0.5, "exclusiveMaximum": 4}, {"type": "integer", "minimum": 1, "maximum": 3}),
        ({"type": "integer", "multipleOf": 5, "minimum": -7, "maximum": 7}, {"enum": [-5, 0, 5]}),
        ({"allOf": [{"type": "null"}]}, {"type": "null"}),
        ({"const": [1, None]}, {"enum": [[1, None]]}),
        ({"prefixItems": [{}, {}], "maxItems": 1}, {"type": "array", "prefixItems": [ANY], "items": False}),
        ({"type": "array", "uniqueItems": False, "minItems": 1}, {"type": "array", "items": ANY, "minItems": 1}),
        (
            {"properties": {"a": False, "b": {}}, "required": ["b"], "unevaluatedProperties": False},
            {"type": "object", "properties": {"b": ANY}, "required": ["b"], "additionalProperties": False},
        ),
    ],
)  # fmt: skip
def test_what_is_written(schema, found):
    written = rewritten(schema)
    assert written.pop("$defs", {}) in ({}, SHARED)
    assert written == found


def test_references_lead_to_the_same_schema():
    schema = {
        "properties": {
            "a": {"$ref": "#/$defs/x~1y%20z"}, "b": {"$ref": "#/properties/c/anyOf/1"}, "c": {"anyOf": [{}, A_TEXT]},
        },
        "$defs": {"x/y z": {"items": {"$ref": "#"}}, "unused": {"not": {}}},
    }  # fmt: skip
    found = rewritten(schema)
    definitions = found.pop("$defs")
    named = {
        name: one["$ref"].removeprefix("#/$defs/")
        for name, one in found["properties"].items()
        if "$ref" in one
    }
    assert definitions[named["b"]] == TEXT
    assert definitions[named["a"]]["items"]["$ref"].removeprefix("#/$defs/") in definitions
    assert len(definitions) == 5


def test_depth_is_bounded():
    schema: dict = {}
    for _ in range(MAX_DEPTH + 1):
        schema = {"items": schema}
    with pytest.raises(GrammarError, match="nested more than"):
        rewritten(schema)


def test_one_of_schemas_that_exclude_each_other_is_any_of_them():
    """As pydantic writes unions with a discriminator."""
    cat = {
        "type": "object",
        "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}},
        "required": ["kind", "lives"],
    }
    dog = {
        "type": "object",
        "properties": {"kind": {"enum": ["dog", "wolf"]}},
        "required": ["kind"],
    }
    union = {"oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}, {"type": "null"}]}
    schema = {**union, "discriminator": {"propertyName": "kind"}, "$defs": {"Cat": cat, "Dog": dog}}
    found = rewritten(schema)
    assert [one.get("type") for one in found["anyOf"]] == [None, None, "null"]
    assert len(found["$defs"]) == 2


@pytest.mark.parametrize("value", ["colour", ["date"], {}, 5, None])
def test_format_that_json_schema_does_not_define_is_an_annotation(value):
    schema = {"type": "string", "maxLength": 3}
    assert rewritten(schema | {"format": value}) == rewritten(schema)
