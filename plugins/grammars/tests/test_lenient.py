"""Keywords that cannot be enforced are left out and named; what stands beside them stays in force."""

from __future__ import annotations

import json

import pytest

from tenonry.sampling_params import StructuredOutput
from tenonry_grammar_llguidance.backend import LLGuidance
from tenonry_grammars.base import GrammarContext, GrammarError
from tenonry_grammars.lenient import MAX_LEFT_OUT, relaxed
from tenonry_testkit.fakes.tokenizer import END, TOKENIZER_JSON


@pytest.fixture(scope="module")
def backend() -> LLGuidance:
    return LLGuidance(GrammarContext(TOKENIZER_JSON, 300, (END,)))


def left_out(backend, schema) -> tuple[dict, list[str]]:
    found = relaxed(backend, json.dumps(schema))
    backend.compile(StructuredOutput(json=found.schema))
    return json.loads(found.schema), list(found.left_out)


LONG = r"^(?:\S+\s+)*\S+$"  # with a length, more than a lexer may compute
UNIQUE = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "maxItems": 9}


@pytest.mark.parametrize(
    ("schema", "pointers", "rest"),
    [
        ({"type": "null"}, [], {"type": "null"}),
        (UNIQUE, ["/uniqueItems"], {"type": "array", "items": {"type": "integer"}, "maxItems": 9}),
        (
            {"properties": {"a/b": {"pattern": "(?=x)", "maxLength": 3}}},
            ["/properties/a~1b/pattern"],
            {"properties": {"a/b": {"maxLength": 3}}},
        ),
        (
            {"$defs": {"n": UNIQUE}, "items": {"$ref": "#/$defs/n"}, "contains": {}},
            ["/$defs/n/uniqueItems", "/contains"],
            {
                "$defs": {"n": {"type": "array", "items": {"type": "integer"}, "maxItems": 9}},
                "items": {"$ref": "#/$defs/n"},
            },
        ),
        (
            {"type": "string", "oneOf": [{"format": "email"}, {"format": "uri"}], "minLength": 1},
            ["/oneOf"],
            {"type": "string", "anyOf": [{"format": "email"}, {"format": "uri"}], "minLength": 1},
        ),
        (
            {"type": "string", "oneOf": [{"format": "email"}, {"format": "uri"}], "anyOf": [{}]},
            ["/oneOf"],
            {
                "type": "string",
                "anyOf": [{}],
                "allOf": [{"anyOf": [{"format": "email"}, {"format": "uri"}]}],
            },
        ),
        (
            {"type": "string", "not": {"format": "date"}, "maxLength": 2},
            ["/not"],
            {"type": "string", "maxLength": 2},
        ),
        (
            {"items": {"type": "string", "pattern": LONG, "maxLength": 5000}},
            ["/items/maxLength"],
            {"items": {"type": "string", "pattern": LONG}},
        ),
        (
            {"type": "object", "properties": {"a": {}}, "allOf": [{"minProperties": 5}]},
            ["/allOf/0/minProperties"],
            {"type": "object", "properties": {"a": {}}, "allOf": [{}]},
        ),
    ],
)
def test_only_the_keyword_at_fault_is_left_out(backend, schema, pointers, rest):
    found, names = left_out(backend, schema)
    assert sorted(names) == sorted(pointers)
    assert found == rest


def test_alternatives_keep_their_place_among_the_keywords(backend):
    schema = {"oneOf": [{"format": "email"}, {"format": "uri"}], "type": "string"}
    found, _ = left_out(backend, schema)
    assert list(found) == ["anyOf", "type"]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("{", "no JSON"),
        ('{"type": "strin"}', "'strin'; it must be one of"),
        ('{"enum": ["a"], "type": "null"}', "nothing satisfies it"),
        ('{"$ref": "http://example.com/"}', "nothing is retrieved"),
    ],
)
def test_a_schema_that_is_wrong_is_refused(backend, schema, words):
    with pytest.raises(GrammarError, match=words):
        relaxed(backend, schema)


def test_a_schema_of_unserved_keywords_is_refused(backend):
    many = {f"p{place}": {"contains": {}} for place in range(MAX_LEFT_OUT + 1)}
    with pytest.raises(GrammarError, match="contains"):
        relaxed(backend, json.dumps({"properties": many}))
