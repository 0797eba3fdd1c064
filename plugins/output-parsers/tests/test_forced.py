"""The schema of demanded calls: admitted answers, and references that stay valid in it."""

from __future__ import annotations

import json

import jsonschema
import pytest

from tenonry_output_parsers.base import Tool
from tenonry_output_parsers.forced import forced_calls

POINT = {
    "type": "object",
    "properties": {"at": {"$ref": "#/$defs/pair"}, "next": {"$ref": "#"}},
    "required": ["at"],
    "$defs": {"pair": {"type": "array", "items": {"type": "integer"}, "minItems": 2}},
}
TOOLS = (
    Tool("add", {"type": "object", "properties": {"a": {"type": "integer"}}}),
    Tool("draw", POINT),
    Tool("move", POINT),
    Tool("stop"),
)


def is_valid(calls, **options):
    spec = forced_calls(TOOLS, **{"parallel": True, **options})
    schema = json.loads(spec.json)
    return jsonschema.Draft202012Validator(schema).is_valid(calls)


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([{"name": "add", "arguments": {"a": 1}}], True),
        ([{"name": "add", "arguments": {"a": "1"}}], False),
        ([{"name": "draw", "arguments": {"at": [1, 2], "next": {"at": [3, 4]}}}], True),
        ([{"name": "draw", "arguments": {"at": [1, 2], "next": {"at": [3]}}}], False),
        ([{"name": "move", "arguments": {"at": [1]}}], False),
        ([{"name": "stop", "arguments": {"why": 1}}], True),
        ([{"name": "sub", "arguments": {}}], False),
        ([{"name": "stop"}], False),
        ([], False),
    ],
)
def test_calls_of_the_tools_and_no_others(calls, expected):
    assert is_valid(calls) is expected


def test_one_call_unless_they_may_be_parallel():
    two = [{"name": "stop", "arguments": {}}] * 2
    assert is_valid(two)
    assert not is_valid(two, parallel=False)
