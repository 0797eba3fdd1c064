"""Forms of values that a schema allows, and what is refused or left out."""

from __future__ import annotations

import json

import pytest

from tenonry_grammars.base import GrammarError
from tenonry_grammars.schemas.forms import Forms
from tenonry_grammars.schemas.leaves import ANY, NONE, Array, Null, Number, Object, Text
from tenonry_grammars.schemas.reading import MAX_LEAVES, Reader


def forms(schema) -> Forms:
    return Forms(Reader(schema))


def root(schema) -> list:
    reader = Reader(schema)
    return Forms(reader).of[reader.root]


def refused(schema) -> GrammarError:
    with pytest.raises(GrammarError) as caught:
        forms(schema)
    return caught.value


class TestCombinations:
    def test_both_of_two_ranges_is_the_narrower_one(self):
        (leaf,) = root({"allOf": [{"type": "integer", "minimum": 2.5}, {"exclusiveMaximum": 7}]})
        assert (leaf.is_whole, leaf.low, leaf.high) == (True, 3, 6)

    def test_both_of_two_multiples_is_their_common_multiple(self):
        (leaf,) = root({"type": "number", "multipleOf": 0.5, "allOf": [{"multipleOf": 0.75}]})
        assert leaf.factor == 1.5

    def test_listed_values_that_break_another_keyword_are_dropped(self):
        assert root({"enum": ["a", "bb", 3, None], "minLength": 2, "maximum": 2}) == [
            Null(),
            Text(values=("bb",)),
        ]

    def test_the_opposite_of_a_range_is_what_lies_beside_it(self):
        below, above = root({"type": "integer", "not": {"minimum": 3, "maximum": 5}})
        assert (below.high, above.low) == (2, 6)

    def test_alternatives_that_exclude_each_other_stay_as_they_are(self):
        schema = {"oneOf": [{"type": "null"}, {"type": "array", "maxItems": 0}]}
        reader = Reader(schema)
        found = Forms(reader)
        leaves = [leaf for part in found.of[reader.root] for leaf in found.of[part.conditions]]
        assert leaves == [Null(), Array(high=0)]

    def test_too_many_are_refused(self):
        options = [{"enum": [f"{place}"]} for place in range(33)]
        pairs = [{"properties": {f"p{place}": option}} for place, option in enumerate(options)]
        error = refused({"type": "object", "allOf": [{"anyOf": pairs}, {"anyOf": pairs[::-1]}]})
        assert str(MAX_LEAVES) in str(error)


class TestObjects:
    def test_few_names_of_a_pattern_become_properties(self):
        (leaf,) = root({"type": "object", "patternProperties": {"^(a|b)$": {"type": "null"}}})
        assert [name for name, _ in leaf.properties] == ["a", "b"]
        assert not leaf.patterns

    def test_a_required_property_without_a_schema_has_that_of_its_pattern(self):
        schema = {
            "type": "object",
            "required": ["ab"],
            "additionalProperties": False,
            "patternProperties": {"^a": {"type": "null"}},
        }
        (leaf,) = root(schema)
        assert dict(leaf.properties)["ab"] not in (ANY, NONE)

    def test_a_required_property_that_cannot_be_is_no_object(self):
        schema = {"type": "object", "required": ["a"], "additionalProperties": False}
        assert str(refused(schema)) == "nothing satisfies it"
        assert root({"anyOf": [schema, {"type": "null"}]})

    def test_counts_become_choices_of_what_is_required(self):
        named = {name: {"type": "null"} for name in "abc"}
        leaves = root(
            {
                "type": "object",
                "properties": named,
                "additionalProperties": False,
                "minProperties": 2,
            }
        )
        assert [leaf.required for leaf in leaves] == [("a", "b"), ("a", "c"), ("b", "c")]
        assert {(leaf.low, leaf.high) for leaf in leaves} == {(0, None)}

    def test_an_endless_object_satisfies_nothing(self):
        error = refused({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})
        assert (str(error), error.path) == ("nothing satisfies it", "")


@pytest.mark.parametrize(
    ("schema", "path", "keyword"),
    [
        ({"items": {"type": "array", "uniqueItems": True}}, "/items", "uniqueItems"),
        ({"items": {"pattern": "(?=x)"}}, "/items", "pattern"),
        ({"items": {"format": "regex"}}, "/items", "format"),
        ({"type": "array", "allOf": [{}, {"contains": {}}]}, "/allOf/1", "contains"),
        (
            {"patternProperties": {"^a": {"type": "null"}, "b$": {}, "c": {"type": "string"}, "d": {"minimum": 2}},
             "allOf": [{"minProperties": 1}]},
            "",
            "patternProperties",
        ),
        (
            {"properties": {"c": {}}, "allOf": [{"minProperties": 4}]},
            "/allOf/0",
            "minProperties",
        ),
        ({"propertyNames": {"minLength": 99, "pattern": "^a"}}, "", "propertyNames"),
        ({"type": "string", "items": {}, "not": {"format": "date"}}, "", "not"),
        ({"$defs": {"a": {"format": "date"}}, "not": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "object"}],
          "type": ["string", "object"]}, "type": "string"}, "", "not"),
        (
            {"oneOf": [{"properties": {"a": {"format": "date"}}}, {"properties": {"a": {"format": "time"}}}]},
            "",
            "oneOf",
        ),
    ],
)  # fmt: skip
def test_the_keyword_at_fault_is_known(schema, path, keyword):
    error = refused(schema)
    assert (error.path, error.keyword) == (path, keyword)


@pytest.mark.parametrize(
    ("schema", "path", "words"),
    [
        ({"properties": 3}, "", "'properties' is an object of schemas, not 3"),
        ({"items": {"required": "a"}}, "/items", "'required' is a list of names"),
        ({"items": {"anyOf": []}}, "/items", "'anyOf' is a list that is not empty"),
        ({"items": {"type": "strin"}}, "/items", "'type' is 'strin'; it must be one of null"),
        ({"items": {"multipleOf": 0}}, "/items", "'multipleOf' is a number above 0, not 0"),
        ({"properties": {"a": "x"}}, "/properties/a", "a schema is an object, not a str"),
        ({"not": {}}, "", "nothing satisfies it"),
        ({"$ref": "#"}, "", "nothing satisfies it"),
    ],
)
def test_a_wrong_value_is_refused_by_path(schema, path, words):
    error = refused(schema)
    assert str(error).startswith(words)
    assert error.path == path


@pytest.mark.parametrize(
    "schema",
    [
        {
            "type": "integer",
            "minimum": 3,
            "maximum": None,
            "enum": None,
            "format": None,
            "$ref": None,
        },
        {"type": "object", "properties": None, "required": None, "additionalProperties": None},
        {"type": "array", "items": None, "minItems": 1, "anyOf": None, "not": None, "if": None},
        {"not": {"type": "string", "pattern": None}},
        {
            "type": "object",
            "properties": {"a": {"type": "null", "const": None, "description": None}},
        },
    ],
)
def test_a_keyword_that_is_null_is_absent(schema):
    assert root(schema) == root(without_nulls(schema))


def without_nulls(value):
    if not isinstance(value, dict):
        return value
    return {
        name: without_nulls(inner)
        for name, inner in value.items()
        if inner is not None or name == "const"
    }


def test_a_const_that_is_null_is_a_value():
    assert root({"const": None, "enum": None}) == [Null()]
    assert str(refused({"properties": {"a": None}, "required": ["a"]})).startswith(
        "a schema is an object"
    )


def test_an_unused_definition_is_not_read():
    assert root({"type": "null", "definitions": {"group": {"type": {"type": "x"}}}}) == [Null()]


def test_a_number_keeps_all_its_digits():
    (leaf,) = root(json.loads('{"type": "number", "minimum": 0.1, "maximum": 12345678901234567}'))
    assert leaf == Number(low=leaf.low, high=leaf.high)
    assert (str(leaf.low), leaf.high) == ("1/10", 12345678901234567)


def test_an_object_of_any_kind_is_one_form():
    assert root({"type": "object", "title": "t"}) == [Object()]
