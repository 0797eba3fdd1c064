"""Errors of a schema, and their paths."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenonry.sampling_params import StructuredOutput
from tenonry_grammars.base import GrammarError
from tenonry_grammars.probing import check_spec
from tenonry_grammars.schema import (
    MAX_DEPTH,
    RESTRICTING,
    check_depth,
    failing_part,
    parse_schema,
    parts,
    pointer,
)


class TestParse:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("{", "no JSON"),
            ("[" * 100_000, "no JSON"),
            ("[1]", "is a list"),
            ("null", "NoneType"),
            ('"a"', "is a str"),
        ],
    )
    def test_what_is_no_schema_is_refused(self, text, message):
        with pytest.raises(GrammarError, match=message):
            parse_schema(text)

    def test_objects_and_flags_are(self):
        assert parse_schema('{"type": "string"}') == {"type": "string"}
        assert parse_schema("true") is True


class TestDepth:
    def test_depth_is_bounded(self):
        schema = {}
        for _ in range(MAX_DEPTH):
            schema = {"properties": {"a": schema}}
        check_depth(schema)
        with pytest.raises(GrammarError, match=f"more than {MAX_DEPTH} deep"):
            check_depth({"properties": {"a": schema}})

    @given(
        st.recursive(
            st.just({"type": "string"}),
            lambda part: st.dictionaries(
                st.sampled_from(sorted(RESTRICTING)),
                part | st.lists(part) | st.dictionaries(st.text(), part),
            ),
            max_leaves=8,
        )
    )
    def test_any_shape_is_walked(self, schema):
        assert all(isinstance(path, tuple) for path, _ in parts(schema))


class TestFailingPart:
    @staticmethod
    def compiles(text):
        """Fails for a schema that has `not` somewhere in what its reference leads to."""
        schema = json.loads(text)
        part = schema
        for name in schema["$ref"].removeprefix("#/").split("/"):
            key = name.replace("~1", "/").replace("~0", "~")
            part = part[int(key)] if isinstance(part, list) else part[key]
        return part is not False and '"not"' not in json.dumps(part)

    @pytest.mark.parametrize(
        ("schema", "path"),
        [
            ({"not": {}}, ""),
            (
                {
                    "properties": {
                        "a": {"type": "string"},
                        "b": {"items": {"anyOf": [{}, {"not": True}]}},
                    }
                },
                "/properties/b/items/anyOf/1",
            ),
            ({"$defs": {"a/b": {"not": True}}}, "/$defs/a~1b"),
            ({"additionalProperties": False, "properties": {"a": {"not": {}}}}, "/properties/a"),
        ],
    )
    def test_the_smallest_is_found(self, schema, path):
        assert failing_part(schema, self.compiles) == path

    def test_references_still_lead_to_the_whole(self):
        seen = []
        schema = {"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"type": "string"}}}
        failing_part(schema, lambda text: seen.append(json.loads(text)) or True)
        moved = seen[0]
        assert moved["$ref"] == "#/$defs/root/properties/a"
        assert moved["$defs"]["root"]["properties"]["a"]["$ref"] == "#/$defs/root/$defs/b"

    def test_a_backend_that_names_the_part_is_believed(self):
        """And compiles once."""
        compiled = []

        class Backend:
            def compile(self, spec):
                compiled.append(spec)
                raise GrammarError("cannot be", "/items" if "items" in spec.json else "")

        for schema, message in (
            ('{"items": {}}', "^/items: cannot be"),
            ("{}", "^the schema: cannot"),
        ):
            with pytest.raises(GrammarError, match=message):
                check_spec(Backend(), StructuredOutput(json=schema))
        assert len(compiled) == 2

    def test_a_pointer_escapes_names(self):
        assert pointer(("a/b", "c~d", "")) == "/a~1b/c~0d/"
