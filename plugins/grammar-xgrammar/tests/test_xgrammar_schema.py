"""A schema is written anew from what xgrammar enforces, and all else is refused with its path; needs no xgrammar."""

from __future__ import annotations

import json

import pytest

from tenonry.sampling_params import StructuredOutput
from tenonry_grammar_xgrammar.schema import ANY, ANY_TEXT, SHARED, TEXT, rewritten
from tenonry_grammars.base import GrammarError
from tenonry_grammars.probing import check_spec
from tenonry_grammars.schema import MAX_DEPTH

A_TEXT = {"type": "string"}
BAD = [
    ({"type": "number", "multipleOf": 2}, "", "'integer' only", "multipleOf"),
    ({"type": "integer", "multipleOf": 1025}, "", "up to 1024", "multipleOf"),
    ({"type": "integer", "multipleOf": 3, "minimum": 1}, "", "with both", "multipleOf"),
    ({"type": "integer", "minimum": 2**63}, "", "beyond 64 bits", None),
    ({"enum": [2**63]}, "", "beyond 64 bits", None),
    ({"type": "number", "minimum": 0.0078125}, "", "5 decimals at most; 'minimum' is 0.0078125", None),
    ({"type": "number", "maximum": 1e16}, "", r"up to 1e\+15", None),
    (
        {"properties": {"a": {}}, "additionalProperties": A_TEXT},
        "", "beside 'properties'", "additionalProperties",
    ),
    ({"properties": {"a": {}}, "patternProperties": {"^b": {}}}, "", "beside 'properties'", "patternProperties"),
    ({"properties": {"a": {}}, "propertyNames": {"maxLength": 3}}, "", "beside 'properties'", "propertyNames"),
    ({"type": "object", "patternProperties": {"a": A_TEXT}}, "", "beside other names", "patternProperties"),
    ({"type": "object", "minProperties": 2}, "", "'minProperties'", "minProperties"),
    ({"properties": {"a": {"type": "array", "uniqueItems": True}}}, "/properties/a", "'uniqueItems'", "uniqueItems"),
    ({"type": "string", "format": "regex"}, "", "the format 'regex'", "format"),
    (False, "", "nothing satisfies", None),
    (
        {"properties": {"a/b": {"anyOf": [A_TEXT, {"type": "number", "multipleOf": 2}]}}},
        "/properties/a~1b/anyOf/1", "'integer' only", "multipleOf",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "path", "message", "keyword"), BAD, ids=lambda one: str(one)[:60]
)
def test_what_is_not_enforced_is_refused_with_its_path(schema, path, message, keyword):
    with pytest.raises(GrammarError, match=message) as caught:
        rewritten(schema)
    assert caught.value.path == path
    assert caught.value.keyword == keyword


def test_the_path_gets_to_the_user_without_other_trials():
    compiled = []

    class Backend:
        def compile(self, spec):
            compiled.append(spec)
            rewritten(json.loads(spec.json))

    halves = {"type": "number", "multipleOf": 0.5}
    schema = {"properties": {"a": halves, "b": halves}}
    with pytest.raises(GrammarError, match=r"^/properties/a: xgrammar enforces 'multipleOf'"):
        check_spec(Backend(), StructuredOutput(json=json.dumps(schema)))
    assert len(compiled) == 1


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        (True, ANY),
        ({"title": "T", "x-a": 1, "default": 1}, ANY),
        ({"type": "object"}, {"type": "object", "additionalProperties": ANY, "propertyNames": ANY_TEXT}),
        ({"type": ["string", "null"]}, {"anyOf": [TEXT, {"type": "null"}]}),
        ({"type": "string", "minimum": 3}, TEXT),
        ({"type": "number", "minimum": 3}, {"type": "number", "minimum": 3}),
        ({"type": "integer", "minimum": 0.5, "exclusiveMaximum": 4}, {"type": "integer", "minimum": 1, "maximum": 3}),
        ({"type": "integer", "multipleOf": 5, "minimum": -7, "maximum": 7}, {"enum": [-5, 0, 5]}),
        ({"type": "integer", "multipleOf": 1.5}, {"type": "integer", "multipleOf": 3}),
        ({"allOf": [{"type": "null"}]}, {"type": "null"}),
        ({"allOf": [{"type": ["null", "string"]}, {"type": ["null", "integer"]}]}, {"type": "null"}),
        ({"enum": [1, "a", None], "type": "string"}, {"enum": ["a"]}),
        ({"type": "string", "const": 1}, None),
        (
            {"type": "array", "prefixItems": [{}, {}], "maxItems": 1},
            {"type": "array", "prefixItems": [ANY], "items": False},
        ),
        (
            {"type": "array", "prefixItems": [{}, False, {}]},
            {"type": "array", "prefixItems": [ANY], "items": False},
        ),
        (
            {"type": "array", "uniqueItems": False, "minItems": 1},
            {"type": "array", "items": ANY, "minItems": 1},
        ),
        (
            {"type": "object", "properties": {"a": False, "b": {}}, "required": ["b"]},
            {"type": "object", "properties": {"b": ANY}, "required": ["b"], "additionalProperties": False},
        ),
        (
            {"type": "object", "required": ["b"]},
            {"type": "object", "properties": {"b": ANY}, "required": ["b"], "additionalProperties": False},
        ),
        (
            {"type": "object", "propertyNames": {"enum": ["a"]}},
            {"type": "object", "properties": {"a": ANY}, "required": [], "additionalProperties": False},
        ),
    ],
)  # fmt: skip
def test_what_is_written(schema, found):
    if found is None:
        with pytest.raises(GrammarError, match="nothing satisfies"):
            rewritten(schema)
        return
    written = rewritten(schema)
    assert written.pop("$defs") == SHARED
    assert written == found


def test_without_a_type_values_of_other_types_are_allowed():
    written = rewritten({"minimum": 3})
    kinds = [one.get("type", one.get("$ref")) for one in written["anyOf"]]
    assert sorted(kinds) == sorted(["null", "boolean", TEXT["$ref"], "array", "object", "number"])


def test_references_lead_to_the_same_schema():
    schema = {
        "type": "object",
        "properties": {
            "a": {"$ref": "#/$defs/x~1y%20z"}, "b": {"$ref": "#/properties/c/anyOf/1"}, "c": {"anyOf": [{}, A_TEXT]},
        },
        "$defs": {"x/y z": {"type": "array", "items": {"$ref": "#"}}, "unused": {"not": {}}},
    }  # fmt: skip
    found = rewritten(schema)
    properties = found["properties"]
    definitions = found["$defs"]
    assert properties["b"] == TEXT
    assert definitions[properties["c"]["$ref"].removeprefix("#/$defs/")] == ANY
    array = definitions[properties["a"]["$ref"].removeprefix("#/$defs/")]
    root = definitions[array["items"]["$ref"].removeprefix("#/$defs/")]
    assert root["properties"] == properties


def test_depth_is_bounded():
    schema: dict = {}
    for _ in range(2 * MAX_DEPTH + 1):
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
    assert len(found["$defs"]) == 2 + len(SHARED)


@pytest.mark.parametrize("value", ["colour", ["date"], {}, 5, None])
def test_format_that_json_schema_does_not_define_is_an_annotation(value):
    schema = {"type": "string", "maxLength": 3}
    assert rewritten(schema | {"format": value}) == rewritten(schema)
