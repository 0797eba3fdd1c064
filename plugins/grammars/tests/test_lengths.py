"""Longest texts of simple specifications, in bytes."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenonry.sampling_params import StructuredOutput
from tenonry_grammars.lengths import longest_text


@pytest.mark.parametrize(
    ("fields", "longest"),
    [
        ({"choice": ("yes", "né")}, 3),
        ({"regex": "a{2,4}(bc|d)?"}, 6),
        ({"regex": "[a-é]{3}"}, 6),
        ({"regex": "a*"}, None),
        ({"regex": "(a{0}|)*"}, 0),
        ({"regex": "(?=a)"}, None),
        ({"json": '{"enum": ["a", "bcd", null]}'}, 5),
        ({"json": '{"const": true}'}, 4),
        ({"json": '{"const": 1}'}, None),
        ({"json": '{"const": "a\\u007f"}'}, None),
        ({"json": '{"type": "boolean"}'}, 5),
        ({"json": '{"type": "string"}'}, None),
        ({"json": "true"}, None),
        ({"json": "{"}, None),
        ({"json_object": True}, None),
        ({"grammar": 'start: "a"'}, None),
    ],
)
def test_longest(fields, longest):
    assert longest_text(StructuredOutput(**fields)) == longest


@given(st.from_regex(re.compile(r"(a|bc){1,3}é?\d{0,2}"), fullmatch=True))
def test_no_match_is_longer(text):
    longest = longest_text(StructuredOutput(regex=r"(a|bc){1,3}é?[0-9]{0,2}"))
    assert longest == 10
    assert not text.isascii() or len(text) <= longest


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])) | st.booleans(), min_size=1))
def test_no_value_is_longer(values):
    longest = longest_text(StructuredOutput(json=json.dumps({"enum": values})))
    written = [len(json.dumps(value, ensure_ascii=False).encode()) for value in values]
    assert longest is None or longest >= max(written)
