"""Grammars in the notations that xgrammar reads, and what of them is refused; needs no xgrammar."""

from __future__ import annotations

import pytest

from tenonry_grammar_xgrammar.notation import choice_grammar, ebnf_grammar, lark_grammar
from tenonry_grammars.base import GrammarError


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ('start: %json {"type": "object"}', "'%json'"),
        ("%llguidance {}\nstart: /a/", "'%llguidance'"),
        ("start: @other", "'@other'"),
        ("start: <|end|>", r"'<\|end\|>'"),
        ("start[max_tokens=3]: /a/", "'\\[max_tokens=3\\]'"),
        ("start[lazy]: /a/", "'\\[lazy\\]'"),
        ("start: A & ~B", "'&'"),
        ("start: a -> b", "'->'"),
        ("start: /a/i", "the flags 'i'"),
        ("start: /(?=a)/", "look-around"),
        ('start: "a', "'\"'"),
    ],
)
def test_what_is_not_plain_lark_is_refused_with_what_to_type(grammar, message):
    with pytest.raises(GrammarError, match=message) as caught:
        lark_grammar(grammar)
    assert "look-around" in message or "--grammar-backend llguidance" in str(caught.value)


def test_plain_rules_stay_and_expressions_are_written_anew():
    grammar = 'start: "<%@[/" NAME? // %json\nNAME: /[a-z]{1,4}\\/\\d/ # a /comment/\n?x: "\\"" | "a".."z"\n'
    expected = 'first_rule_of_all: "<%@[/" NAME? \nNAME: /[a-z]{1,4}[\\u002f][0-9]/ \n?x: "\\"" | "a".."z"\n'
    assert lark_grammar(grammar) == expected + "\nstart: first_rule_of_all\n"


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("hello", "neither a rule"),
        ('root ::= "a" (= "b")', "not GBNF"),
        ('root ::= TagDispatch(("a", b))', "not GBNF"),
        ("root ::= Token(3)", "not GBNF"),
        ('root ::= "\\ud800"', "surrogate"),
        ("root ::= [\\U0000dfff]", "surrogate"),
    ],
)
def test_what_is_not_gbnf_is_refused(grammar, message):
    with pytest.raises(GrammarError, match=message):
        ebnf_grammar(grammar)


def test_gbnf_gets_a_first_rule():
    grammar = 'root ::= a ("(= x(" | [(=] | b (c | d))  # f(\na ::= "\\"("\n'
    assert ebnf_grammar(grammar) == f"{grammar}\nfirst-rule-of-all ::= root\n"


def test_choices_are_texts_and_nothing_else():
    assert (
        choice_grammar(['a"', "\\n", "😀"])
        == 'first-rule-of-all ::= "a\\u0022" | "\\u005cn" | "\\U0001f600"\n'
    )
