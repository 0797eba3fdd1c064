"""The fields for structured output: every name, their bounds, and one at a time (SO-1)."""

from __future__ import annotations

import json

import pytest

from tenonry.errors import RequestError
from tenonry.sampling_params import MAX_GRAMMAR_BYTES, MAX_START_AFTER, StructuredOutput
from tenonry_openai_server.errors import APIError
from tenonry_openai_server.protocol.parse import parse_body
from tenonry_openai_server.protocol.requests import ChatRequest, CompletionRequest
from tenonry_openai_server.protocol.structured import MAX_CHOICES

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "null"}}}
TEXT = '{"type":"object","properties":{"b":{"type":"string"},"a":{"type":"null"}}}'


def spec_of(kind=CompletionRequest, **fields):
    prompt = (
        {"prompt": "x"}
        if kind is CompletionRequest
        else {"messages": [{"role": "user", "content": "x"}]}
    )
    body = parse_body(kind, json.dumps({"model": "m", **prompt, **fields}).encode(), pytest.fail)
    return body.sampling_params({}, detokenize=True).structured_output


@pytest.mark.parametrize("kind", [CompletionRequest, ChatRequest])
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"response_format": None}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"structured_outputs": {}}, None),
        ({"structured_outputs": {"json_object": False, "regex": None}}, None),
        ({"guided_json": None, "guided_choice": None}, None),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
                }
            },
            {"json": TEXT},
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": SCHEMA, "description": "d"},
                }
            },
            {"json": TEXT},
        ),
        ({"structured_outputs": {"json": SCHEMA}}, {"json": TEXT}),
        ({"structured_outputs": {"json": TEXT}}, {"json": TEXT}),
        ({"structured_outputs": {"json_object": True}}, {"json_object": True}),
        ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
        ({"structured_outputs": {"choice": ["a", "b"]}}, {"choice": ("a", "b")}),
        (
            {"structured_outputs": {"grammar": "start: x", "start_after": [5, 6]}},
            {"grammar": "start: x", "start_after": (5, 6)},
        ),
        ({"guided_json": SCHEMA}, {"json": TEXT}),
        ({"guided_json": TEXT}, {"json": TEXT}),
        ({"guided_regex": "a+"}, {"regex": "a+"}),
        ({"guided_choice": ["a", "b"]}, {"choice": ("a", "b")}),
        ({"guided_grammar": "start: x"}, {"grammar": "start: x"}),
        ({"guided_regex": "a", "response_format": {"type": "text"}}, {"regex": "a"}),
    ],
    ids=str,
)
def test_every_name_becomes_the_same_value(kind, fields, expected):
    assert spec_of(kind, **fields) == (expected and StructuredOutput(**expected))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        (
            {"response_format": {"type": "json_object", "json_schema": {"schema": {}}}},
            "response_format",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": []}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": None}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
            "response_format.json_schema.schema",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": {}, "strict": "yes"},
                }
            },
            "response_format.json_schema.strict",
        ),
        ({"response_format": {"type": "text", "json_schem": 1}}, "response_format.json_schem"),
        ({"structured_outputs": {"jsn": {}}}, "structured_outputs.jsn"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
        (
            {"structured_outputs": {"regex": "a", "start_after": [-1]}},
            "structured_outputs.start_after.0",
        ),
        (
            {"structured_outputs": {"regex": "a", "start_after": [1] * (MAX_START_AFTER + 1)}},
            "structured_outputs.start_after",
        ),
        ({"guided_json": 5}, "guided_json"),
        ({"guided_json": "x" * (MAX_GRAMMAR_BYTES + 1)}, "guided_json"),
        ({"guided_json": {"a": "x" * MAX_GRAMMAR_BYTES}}, "guided_json"),
        ({"guided_regex": ["a"]}, "guided_regex"),
        ({"guided_regex": "x" * (1 << 20)}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", 1]}, "guided_choice.1"),
        ({"guided_choice": ["a"] * (MAX_CHOICES + 1)}, "guided_choice"),
        ({"guided_grammar": ""}, "guided_grammar"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_out_of_bounds_is_a_400_with_the_field(fields, param):
    with pytest.raises(APIError) as caught:
        spec_of(**fields)
    assert caught.value.status_code == 400
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_regex and guided_choice constrain"),
        (
            {"response_format": {"type": "json_object"}, "guided_json": {}},
            "response_format and guided_json constrain",
        ),
        (
            {"structured_outputs": {"regex": "a", "json": {}}},
            r"structured_outputs.json and structured_outputs.regex constrain",
        ),
        ({"structured_outputs": {"start_after": [1]}}, "start_after needs one of"),
    ],
)
def test_several_at_once_are_refused_by_name(fields, message):
    with pytest.raises(RequestError, match=message) as caught:
        spec_of(**fields)
    assert caught.value.param == "structured_outputs"
