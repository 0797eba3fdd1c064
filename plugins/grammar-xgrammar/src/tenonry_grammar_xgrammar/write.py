"""Expressions in the form in which xgrammar gets them: for a text, and for the inside of a JSON string. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from tenonry_grammar_xgrammar import characters as chars
from tenonry_grammar_xgrammar.characters import Chars
from tenonry_grammar_xgrammar.regex import Choice, Node, One, Repeat, Row
from tenonry_grammars.base import GrammarError

# Above ASCII: xgrammar drops escapes from an expression for a JSON string that is all in ASCII.
LAST_CHAR = chr(chars.LAST)
# How characters are written that a JSON string may not have as they are; other control characters are left out.
JSON_ESCAPES = {
    '"': '"',
    "\\": "\\",
    "\b": "b",
    "\f": "f",
    "\n": "n",
    "\r": "r",
    "\t": "t",
}
PLAIN_IN_JSON = chars.complement(chars.union(((0, 0x1F),), chars.of('"\\')))


def written(node: Node, *, in_json: bool) -> str:
    """The expression. `in_json`: of what stands between the quotes of a JSON string whose value `node` matches.

    Raises GrammarError where a set has no character.
    """
    if isinstance(node, One):
        return _json_class(node.chars) if in_json else _class(node.chars)
    if isinstance(node, Repeat):
        return _repeated(node, in_json)
    if isinstance(node, Row):
        return "".join(
            f"({written(part, in_json=in_json)})"
            if isinstance(part, Choice)
            else written(part, in_json=in_json)
            for part in node.parts
        )
    options = [written(option, in_json=in_json) for option in node.options]
    some = "|".join(option for option in options if option)
    return some if all(options) else f"({some})?" if some else ""


def _repeated(node: Repeat, in_json: bool) -> str:
    part = written(node.part, in_json=in_json)
    if not part or node.high == 0:
        return ""
    if not isinstance(node.part, One) or in_json:
        part = f"({part})"
    if node.high is None:
        return part + {0: "*", 1: "+"}.get(node.low, f"{{{node.low},}}")
    if (node.low, node.high) == (0, 1):
        return f"{part}?"
    return f"{part}{{{node.low},{node.high}}}"


def _json_class(some: Chars) -> str:
    plain = chars.minus(some, chars.complement(PLAIN_IN_JSON))
    letters = "".join(letter for char, letter in JSON_ESCAPES.items() if chars.has(some, char))
    options = [_class(plain)] if plain else []
    if letters:
        options.append(f"\\\\{_by_its_complement(chars.of(letters))}")
    if not options:
        raise _nothing()
    return options[0] if len(options) == 1 and plain else f"({'|'.join(options)})"


def _class(some: Chars) -> str:
    if not some:
        raise _nothing()
    return f"[{_ranges(some)}]"


def _ranges(some: Iterable[chars.Range]) -> str:
    return "".join(
        _escape(low) if low == high else f"{_escape(low)}-{_escape(high)}" for low, high in some
    )


def _by_its_complement(some: Chars) -> str:
    """A class of ASCII characters that names one above ASCII, among those that it excludes."""
    *others, (low, _) = chars.union(chars.complement(some), chars.SURROGATES)
    return f"[^{_ranges(others)}{_escape(low)}-{LAST_CHAR}]"


def _escape(code: int) -> str:
    char = chr(code)
    if char.isascii() and char.isalnum():
        return char
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\u{{{code:x}}}"


def _nothing() -> GrammarError:
    return GrammarError("a class of the regular expression has no character: nothing satisfies it")


ESCAPE_LETTERS = chars.of('"\\/bfnrt')
# What stands between the quotes of any JSON string; halves of surrogate pairs do not, not even as escapes.
ANY_JSON_TEXT = (
    f"({_class(PLAIN_IN_JSON)}|\\\\({_by_its_complement(ESCAPE_LETTERS)}"
    "|u([0-9abcefABCEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2})))*"
)
