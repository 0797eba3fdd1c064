"""Expressions are read as `re` reads them, and what is written of them matches the same; needs no xgrammar."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenonry_grammar_xgrammar.write import written
from tenonry_grammars.base import GrammarError
from tenonry_grammars.regex import MAX_COUNT, MAX_NESTING, parsed
from tenonry_grammars.schemas.formats import FORMATS


def for_re(found: str) -> str:
    """An expression as xgrammar gets it, with escapes as `re` has them."""
    return re.sub(r"\\u\{(\w+)\}", lambda code: f"\\U{int(code[1], 16):08x}", found)


def matches(pattern: str, text: str) -> bool:
    """Return True if the expression, as passed to xgrammar, matches the whole text."""
    found = written(parsed(pattern, whole=True), in_json=False)
    return bool(re.fullmatch(for_re(found), text))


def allows(pattern: str, text: str) -> bool:
    """Return True if a JSON string of the text satisfies `pattern` of a schema, as passed to xgrammar."""
    found = written(parsed(pattern, whole=False), in_json=True)
    return bool(re.fullmatch(for_re(found), json.dumps(text, ensure_ascii=False)[1:-1]))


atoms = st.sampled_from(
    [
        "a",
        "b",
        "1",
        ".",
        "[ab]",
        "[^ab]",
        r"\d",
        r"\w",
        r"\s",
        r"\.",
        "[a-c1]",
        r"[\d-]",
        '"',
        r"\\",
        r"\n",
        r"[^\n\s]",
    ]
)
patterns = st.recursive(
    atoms,
    lambda part: st.one_of(
        st.builds("{}{}".format, part, part),
        st.builds("({}|{})".format, part, part),
        st.builds(
            "(?:{}){}".format, part, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,}", "*?"])
        ),
    ),
    max_leaves=6,
)
texts = st.text('ab1. \n"\\-', max_size=6)


@settings(deadline=None)
@given(patterns, texts)
def test_the_whole_text_is_matched_as_by_re(pattern, text):
    assert matches(pattern, text) == bool(re.fullmatch(pattern, text))


@settings(deadline=None)
@given(patterns, st.sampled_from(["{}", "^{}", "{}$", "^{}$", "^{}|{}$"]), texts)
def test_a_json_string_is_right_where_re_finds_the_pattern(pattern, form, text):
    whole = form.replace("{}", pattern)
    expected = bool(re.search(whole.replace("$", r"\Z"), text))
    if set(text) & set(
        '"\\\n'
    ):  # written with escapes, which only what has no other characters allows
        assert expected or not allows(whole, text)
    else:
        assert allows(whole, text) == expected


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        ("", "", "a"),
        ("a||b", "", "c"),
        ("(|a)+", "", "b"),
        ("(?P<year>\\d{4})-(?<day>\\d)", "1999-1", "19991"),
        (r"\x41\u00e9\U0001f600", "Aé😀", "Aé"),
        (r"[\u0430-\u044f]+", "привет", "hi"),
        (r"[\]\-a]+", "]-a", "b"),
        ("[a-]+", "a-", "b"),
        ("[$^.*]+", "$^.*", "a"),
        (r"^a\$$", "a$", "a"),
        (r"[\b]", "\b", "b"),
        (r"\/", "/", "\\"),
        ("a{0}b", "b", "ab"),
    ],
)
def test_what_people_write(pattern, right, wrong):
    assert matches(pattern, right)
    assert not matches(pattern, wrong)


@pytest.mark.parametrize(
    ("low", "high"), [(0, 128), (0, 129), (0, 300), (128, 128), (129, 129), (130, 300), (257, 500)]
)
def test_long_counts_are_cut_in_a_json_string(low, high):
    for length in {0, low - 1, low, low + 1, high - 1, high, high + 1} - {-1}:
        assert allows(f"^a{{{low},{high}}}$", "a" * length) == (low <= length <= high)
    assert allows(f"^a{{{low},}}$", "a" * (low + 999))
    assert low == 0 or not allows(f"^a{{{low},}}$", "a" * (low - 1))


@pytest.mark.parametrize("text", ["é", "٣", "\u2028", "\ufeff", "\x1c"])
@pytest.mark.parametrize("pattern", [r"\D", r"\W", r"\S", r"[^\w]", r"[^\d]", r"[^\s]", "."])
def test_of_what_is_read_in_two_ways_only_what_is_right_in_both_is_matched(pattern, text):
    if matches(pattern, text):
        assert re.fullmatch(pattern, text)
        assert re.fullmatch(pattern, text, re.ASCII)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(?=a)b", "look-around"),
        ("(?!a)b", "look-around"),
        ("(?<=a)b", "look-around"),
        ("(?<!a)b", "look-around"),
        ("(?i)a", "flag"),
        ("(?>a)", "group"),
        (r"(a)\1", "backreference"),
        (r"(?P<x>a)(?P=x)", "group"),
        (r"\bword", r"\\b is not supported"),
        (r"\Aa", r"\\A"),
        (r"\p{L}", r"\\p"),
        (r"\07", "octal"),
        ("(a", "unclosed group"),
        ("a)", "unmatched"),
        ("[a", "unclosed class"),
        ("[]", "without characters"),
        ("[z-a]", "ends before it begins"),
        (r"[\d-z]", "between two sets"),
        ("a^b", "matches no text"),
        ("a$b", "matches no text"),
        ("{2}a", "nothing to repeat"),
        ("[a&&b]", "&& in a class"),
        ("[[:alpha:]]", r"\[ in a class"),
        ("*a", "nothing to repeat"),
        ("a**", "count after a count"),
        ("a*+", "possessive"),
        ("a{2,1}", "from 2 to 1"),
        (f"a{{{MAX_COUNT + 1}}}", "number from 0"),
        ("a{" + "9" * 5000 + "}", "number from 0"),
        ("(" * (MAX_NESTING + 1), "nested"),
        ("(" * 100_000, "nested"),
        ("\\", "at the end"),
        (r"\u12", "lacks some"),
        (r"\U00110000", "no character of Unicode"),
        (r"\ud800", "surrogate"),
        ("\ud800", "surrogate"),
        (r"[^\s\S]", "nothing satisfies"),
    ],
)
def test_what_is_not_regular_or_ambiguous_is_refused_by_name(pattern, message):
    with pytest.raises(GrammarError, match=message):
        written(parsed(pattern, whole=True), in_json=False)


def test_a_long_expression_is_read_at_once():
    assert matches("a" * 20_000, "a" * 20_000)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        (
            "date",
            ["2024-02-28", "1999-12-31"],
            ["2024-02-31", "2023-02-29", "2024-13-01", "0000-01-01", "2024-1-1"],
        ),
        ("time", ["23:59:59Z", "00:00:00.5+01:00"], ["24:00:00Z", "12:00Z", "12:00:00"]),
        ("date-time", ["2024-02-28T23:59:59Z"], ["2024-02-28 23:59:59Z", "2024-02-30T00:00:00Z"]),
        ("uuid", ["123e4567-e89b-12d3-a456-426614174000"], ["123e4567e89b12d3a456426614174000"]),
        ("ipv4", ["0.0.0.0", "255.1.20.199"], ["256.1.1.1", "01.1.1.1", "1.1.1"]),
        ("email", ["a.b+c@d-e.org"], ["a@b", "a..b@c.de", "@b.de", ".a@b.de"]),
        ("hostname", ["a-b.example"], ["-a.b", "a_b", "a..b"]),
        ("uri", ["https://a.b/c?d=e#f", "urn:x:y"], ["a b", "//a", "http://[::g]/"]),
        ("ipv6", ["::1", "1:2:3:4:5:6:7:8"], ["1:2", ":::", "12345::"]),
        ("duration", ["P1Y2M", "PT5S", "P3W"], ["P", "PT", "P1S"]),
    ],
)
def test_formats(name, right, wrong):
    assert name in FORMATS
    assert all(allows(FORMATS[name], text) for text in right)
    assert not any(allows(FORMATS[name], text) for text in wrong)
