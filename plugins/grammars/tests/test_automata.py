"""Intersections, differences and complements of expressions, as expressions."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenonry_grammars.automata import MAX_STATES, combined
from tenonry_grammars.derivatives import NOTHING
from tenonry_grammars.regex import parsed
from tenonry_grammars.regex_text import pattern_text

PATTERNS = ["a|ab", "(ab)*", "a{2,3}b?", "[ab]*b", "(a|b){0,2}", "a+|b+", "", "b(a|)b*", "[^a]*"]
WANTED = {
    "both": all,
    "neither": lambda matched: not any(matched),
    "the first alone": lambda matched: matched[0] and not matched[1],
}


@given(
    st.sampled_from(PATTERNS),
    st.sampled_from(PATTERNS),
    st.sampled_from(sorted(WANTED)),
    st.lists(st.text("abc", max_size=5), max_size=8),
)
def test_a_text_matches_where_it_is_wanted(one, other, wanted, texts):
    patterns = (one, other)
    node = combined([parsed(pattern, whole=True) for pattern in patterns], WANTED[wanted])
    expression = re.compile("(?!)" if node == NOTHING else pattern_text(node))
    for text in texts:
        matched = tuple(bool(re.fullmatch(pattern, text)) for pattern in patterns)
        assert bool(expression.fullmatch(text)) == WANTED[wanted](matched)


def test_where_no_text_is_wanted_there_is_no_expression():
    nodes = [parsed("a+", whole=True), parsed("b+", whole=True)]
    assert combined(nodes, all) == NOTHING


@pytest.mark.parametrize("pattern", [f"a{{{MAX_STATES}}}", "(a|b)*a(a|b){8}"])
def test_what_takes_too_many_states_is_none(pattern):
    assert combined([parsed(pattern, whole=True)], lambda matched: not matched[0]) is None
