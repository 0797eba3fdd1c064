"""Expressions are read as `re` reads them, and trees of them say the same as the expression."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenonry_grammars.base import GrammarError
from tenonry_grammars.nodes import finite_texts
from tenonry_grammars.regex import parsed
from tenonry_grammars.regex_text import excluding_text, pattern_text

atoms = st.sampled_from(["a", "b", "^", "$", ".", "[^a]", r"\d", "{", "}", ",", "", "[[b]", "a{1}"])
patterns = st.recursive(
    atoms,
    lambda part: st.one_of(
        st.builds("{}{}".format, part, part),
        st.builds("({}|{})".format, part, part),
        st.builds(
            "(?:{}){}".format,
            part,
            st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,1}", "{2,}"]),
        ),
    ),
    max_leaves=6,
)
texts = st.text("ab1{}[", max_size=5)


def is_found(pattern: str, text: str) -> bool:
    """Return True if the parsed tree of the expression matches the text, somewhere in it."""
    try:
        node = parsed(pattern, whole=False)
    except GrammarError as error:
        if "matches no text" in str(error):
            return False
        raise
    return bool(re.fullmatch(pattern_text(node), text))


@pytest.mark.filterwarnings("ignore:Possible nested set:FutureWarning")
@settings(deadline=None)
@given(patterns, texts)
def test_a_pattern_is_found_where_re_finds_it(pattern, text):
    try:
        expected = bool(re.search(pattern.replace("$", r"\Z"), text))
    except re.error:
        return
    assert is_found(pattern, text) == expected


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        (r"^$|(^(?:\S+\s+){0,2}\S+$)", ["", "a", "a b  c"], ["a b c d", " "]),
        ("/^[0-9]$/", [], ["/1/", "1"]),
        ("^([^,]+(,|$)){3,}$", ["a,b,c", "a,b,c,d"], ["a,b"]),
        ("{model}.{name}", ["a{model}x{name}"], ["model"]),
        ("^[[a-z]+$", ["[a["], ["]", "-1"]),
        ("^[a&&b]$", ["&", "a", "b"], ["c"]),
        ("^a{,2}$", ["a{,2}"], ["aa"]),
        ("(?:^|,)x(?:,|$)", ["x", "a,x,b", "x,"], ["ax", "xb"]),
    ],
)
def test_what_people_write(pattern, right, wrong):
    assert all(is_found(pattern, text) for text in right)
    assert not any(is_found(pattern, text) for text in wrong)


def test_of_a_library_with_sets_of_sets_an_expression_for_the_whole_text_is_ambiguous():
    with pytest.raises(GrammarError, match="&& in a class"):
        parsed("[a&&b]", whole=True)


@pytest.mark.parametrize("pattern", ["(a?|^b?|c?$)" * 60, "(a?|^b?|c?$){1000}", "(^a|b){65,}"])
def test_edges_in_too_many_places_are_refused(pattern):
    with pytest.raises(GrammarError, match="too many places"):
        parsed(pattern, whole=False)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a", ["a"]),
        ("(ab|c)d?", ["ab", "c", "abd", "cd"]),
        ("[a-c]", ["a", "b", "c"]),
        ("a{1,3}", ["a", "aa", "aaa"]),
        ("(a?){2}", ["", "a", "aa"]),
        ("a*", None),
        ("(|)*", [""]),
        ("[a-z]", None),
        ("[0-9]{2}", None),
        ("a{0}", [""]),
        ("(a+b|c)", None),
    ],
)
def test_the_texts_of_a_finite_expression(pattern, expected):
    found = finite_texts(parsed(pattern, whole=True), 8)
    assert found is None if expected is None else sorted(found) == sorted(expected)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_but_one(text):
    others = excluding_text([text])
    assert not re.fullmatch(others, text)
    assert re.fullmatch(others, f"{text}.")
