"""The schema that llguidance compiles: definitions, paths of its errors, numbers that it rounds."""

from __future__ import annotations

import pytest

from tenonry_grammar_llguidance.schema import EXACT, rewritten
from tenonry_grammars.base import GrammarError


class TestDefinitions:
    def test_each_place_is_written_once_and_known_by_its_path(self):
        pair = {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}}
        found = rewritten(pair)
        (name,) = {part["$ref"] for part in found.schema["properties"].values()}
        assert name.removeprefix("#/$defs/") in found.paths
        assert list(found.schema["$defs"]) == ["d0"]

    def test_a_small_place_is_written_where_it_stands(self):
        found = rewritten({"type": "array", "items": {"type": "integer", "minimum": 3}})
        assert found.schema == {"type": "array", "items": {"type": "integer", "minimum": 3}}
        assert not found.paths

    def test_a_place_that_allows_nothing_is_false(self):
        found = rewritten({"type": "object", "properties": {"a": {"type": "string", "enum": [1]}}})
        assert found.schema["properties"] == {"a": False}


class TestAlternatives:
    def test_one_that_allows_anything_is_all(self):
        assert rewritten({"anyOf": [{"type": "null"}, {}]}).schema is True

    def test_all_types_together_are_anything(self):
        every = ["null", "boolean", "number", "string", "array", "object"]
        assert rewritten({"type": every}).schema is True


class TestNumbers:
    @pytest.mark.parametrize(
        ("bounds", "written"),
        [
            ({"minimum": EXACT + 1}, EXACT + 2),
            ({"maximum": EXACT + 1}, EXACT),
            ({"minimum": -(10**30)}, -(2**63 - 1024)),
            ({"maximum": 10**30}, 2**63 - 1024),
        ],
    )
    def test_a_bound_that_is_rounded_is_moved_inwards(self, bounds, written):
        (value,) = (
            value
            for keyword, value in rewritten({"type": "integer", **bounds}).schema.items()
            if keyword != "type"
        )
        assert value == written

    @pytest.mark.parametrize("schema", [{"minimum": 10**30}, {"maximum": -(10**30)}])
    def test_a_bound_beyond_all_numbers_is_refused(self, schema):
        with pytest.raises(GrammarError, match="leaves no number that is served"):
            rewritten({"type": "integer", **schema})

    @pytest.mark.parametrize("schema", [{"const": EXACT + 1}, {"multipleOf": EXACT + 1}])
    def test_a_number_that_is_rounded_is_refused(self, schema):
        with pytest.raises(GrammarError, match=str(EXACT)):
            rewritten({"type": "integer", **schema})


class TestTexts:
    def test_two_patterns_are_both_in_force(self):
        found = rewritten({"type": "string", "allOf": [{"pattern": "a"}, {"pattern": "b"}]})
        assert len(found.schema["allOf"]) == 2

    def test_an_expression_of_control_characters_alone_is_refused_by_path(self):
        with pytest.raises(GrammarError, match="control character") as refused:
            rewritten({"items": {"type": "string", "pattern": "\\x01"}})
        assert refused.value.path == "/items"


@pytest.mark.parametrize("value", ["colour", ["date"], {}, 5, None])
def test_format_that_json_schema_does_not_define_is_an_annotation(value):
    schema = {"type": "string", "maxLength": 3}
    assert rewritten(schema | {"format": value}) == rewritten(schema)
