"""Choices and grammars in the notations that xgrammar reads. Pure.

Of Lark's notation it reads rules, terminals, texts, ranges, counts and regular expressions. What needs directives,
attributes or special tokens is refused: it passes over some of them. Its masks lack tokens that go on behind the first
rule where that refers to itself, so a rule of ours comes first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tenonry_grammar_xgrammar.write import written
from tenonry_grammars.base import GrammarError
from tenonry_grammars.regex import parsed

FIRST_RULE = "first-rule-of-all"
# What a grammar in Lark's notation is made of: a comment, a text, an expression, or what only some readers know.
_LARK = re.compile(
    r"""(?P<comment>(?:\#|//)[^\n]*)
    |(?P<text>"(?:\\.|[^"\\\n])*"i?)
    |(?P<regex>/(?:\\.|[^/\\\n])+/[a-z]*)
    |(?P<start>(?<![\w-])start(?![\w-]))
    |(?P<unknown>%\w*|@\w*|<[^>\n]*>?|\[[^\]\n]*\]?|[&~]|->|::|"|/)""",
    re.VERBOSE,
)
# Beside texts, classes and comments, what xgrammar adds to GBNF, such as look-ahead, which it takes on trust.
_EBNF = re.compile(
    r"""\#[^\n]*|"(?:\\.|[^"\\\n])*"|\[(?:\\.|[^\]\\\n])*\]|(?P<unknown>\(\s*=|\b[A-Z]\w*\()""",
    re.VERBOSE,
)
_SURROGATE = re.compile(r"(?<!\\)(?:\\\\)*\\[uU]0{0,4}[dD][89a-fA-F]")
_ROOT = re.compile(r"^[ \t]*root[ \t]*::=", re.MULTILINE)
ELSEWHERE = "start with --grammar-backend llguidance"


def choice_grammar(texts: Sequence[str]) -> str:
    """A grammar of these texts, with the rule `FIRST_RULE`."""
    return f"{FIRST_RULE} ::= {' | '.join(map(_literal, texts))}\n"


def lark_grammar(grammar: str) -> str:
    """The grammar with its expressions in the form for xgrammar. Raises GrammarError for what is refused."""
    first = FIRST_RULE.replace("-", "_")
    return "".join(_lark_parts(grammar, first)) + f"\nstart: {first}\n"


def ebnf_grammar(grammar: str) -> str:
    """The grammar behind a rule `FIRST_RULE`. Raises GrammarError for what is not GBNF."""
    if not _ROOT.search(grammar):
        raise GrammarError(
            "the grammar has neither a rule 'start:', as in Lark's notation, nor 'root ::=', as in GBNF"
        )
    for found in _EBNF.finditer(grammar):
        if found["unknown"]:
            raise GrammarError(f"the grammar has {found[0]!r}, which is not GBNF")
        if _SURROGATE.search(found[0]):
            raise GrammarError(
                f"{found[0][:64]} has half of a surrogate pair, which is no character"
            )
    return f"{grammar}\n{FIRST_RULE} ::= root\n"


def _lark_parts(grammar: str, first: str) -> Iterator[str]:
    place = 0
    for found in _LARK.finditer(grammar):
        yield grammar[place : found.start()]
        place = found.end()
        if found["unknown"]:
            raise GrammarError(
                f"of Lark's notation xgrammar's backend reads plain rules, not {found[0][:64]!r}; write the grammar in "
                f"GBNF, or {ELSEWHERE}"
            )
        if found["regex"]:
            yield _lark_regex(found[0])
        elif found["start"]:
            yield first
        elif found["text"]:
            yield found[0]
    yield grammar[place:]


def _lark_regex(text: str) -> str:
    body, _, flags = text[1:].rpartition("/")
    if flags:
        raise GrammarError(f"the flags {flags!r} of a regular expression are not read; {ELSEWHERE}")
    found = written(parsed(body.replace("\\/", "/"), whole=True), in_json=False)
    return f"/{found}/" if found else '""'


def _literal(text: str) -> str:
    """A text of a grammar."""
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(char: str) -> str:
    if char.isalnum() and char.isascii():
        return char
    code = ord(char)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
