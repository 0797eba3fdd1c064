"""Derivatives decide which names two patterns share, and take names out of a pattern."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenonry_grammars.derivatives import NOTHING, are_apart, derivative, without
from tenonry_grammars.nodes import finite_texts, is_nullable
from tenonry_grammars.regex import parsed
from tenonry_grammars.regex_text import pattern_text

PATTERNS = ["a|ab", "(ab)*", "a{2,3}b?", "[ab]*b", "(a|b){0,2}", "a+|b+", "", "b(a|)b*"]


def matched(node, text: str) -> bool:
    for char in text:
        node = derivative(node, ord(char))
    return is_nullable(node)


@given(st.sampled_from(PATTERNS), st.text("abc", max_size=5))
def test_a_text_matches_where_its_last_derivative_is_nullable(pattern, text):
    assert matched(parsed(pattern, whole=True), text) == bool(re.fullmatch(pattern, text))


@given(st.sampled_from(PATTERNS), st.sets(st.text("ab", max_size=3), max_size=3))
def test_excluded_texts_do_not_match_and_all_others_do(pattern, excluded):
    left = without(parsed(pattern, whole=True), excluded)
    for text in ("", "a", "b", "ab", "aa", "aab", "bb", "bab", "abab"):
        expected = bool(re.fullmatch(pattern, text)) and text not in excluded
        assert matched(left, text) == expected
        if left != NOTHING:
            assert bool(re.fullmatch(pattern_text(left), text)) == expected


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ("x-.*", "y-.*", True),
        ("x-.*", ".*z", False),
        ("[a-m]+", "[n-z]+", True),
        ("[a-m]*", "[n-z]*", False),
        ("(aa)+", "a(aa)*", True),
        ("a{3}", "a{2,4}", False),
    ],
)
def test_patterns_without_a_common_text_are_apart(one, other, apart):
    nodes = parsed(one, whole=True), parsed(other, whole=True)
    assert are_apart(*nodes) is apart
    assert are_apart(*reversed(nodes)) is apart


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("a|b|a", ["a", "b"]),
        ("x[0-2]", ["x0", "x1", "x2"]),
        ("(ab)?c", ["c", "abc"]),
        ("a{1,3}", ["a", "aa", "aaa"]),
        ("a*", None),
        ("[0-9]{2}", None),
        (".", None),
        ("", [""]),
    ],
)
def test_texts_of_a_finite_pattern_are_listed(pattern, texts):
    assert finite_texts(parsed(pattern, whole=True), 32) == texts
