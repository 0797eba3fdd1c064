"""Expressions in the form in which xgrammar gets them: for a text, and for the inside of a JSON string. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tenonry_grammars import characters as chars
from tenonry_grammars.base import GrammarError
from tenonry_grammars.characters import Chars
from tenonry_grammars.nodes import Choice, Node, One, Repeat, Row

# Above ASCII: xgrammar drops escapes from an expression for a JSON string that is all in ASCII.
LAST_CHAR = chr(chars.LAST)
# How characters are written that a JSON string may not have as they are; other control characters are left out.
JSON_ESCAPES = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
# Where a character takes a byte more, or the bytes that may follow the first one change.
UTF8_STEPS = (0x800, 0x1000, 0x10000, 0x40000)
MAX_JSON_COUNT = (
    128  # with a larger one, compiling a schema fails where another was compiled before
)
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
    if not isinstance(node, Choice):
        raise TypeError(f"{node} is not written")
    options = [written(option, in_json=in_json) for option in node.options]
    some = "|".join(option for option in options if option)
    return some if all(options) else f"({some}|)" if some else ""


def _repeated(node: Repeat, in_json: bool) -> str:
    part = written(node.part, in_json=in_json)
    if not part or node.high == 0:
        return ""
    counts = [*_pieces(node.low, node.high)] if in_json else [(node.low, node.high)]
    if isinstance(node.part, One):
        return "".join(part + _count(low, high) for low, high in counts)
    # xgrammar lets the loops of a group with ? begin without what stands before them in it.
    return "".join(
        f"({part}|)" if (low, high) == (0, 1) else f"({part}){_count(low, high)}"
        for low, high in counts
    )


def _pieces(low: int, high: int | None) -> Iterator[tuple[int, int | None]]:
    """Counts one after another that are this one together, each within what xgrammar counts in a JSON string."""
    while low > MAX_JSON_COUNT:
        yield MAX_JSON_COUNT, MAX_JSON_COUNT
        low -= MAX_JSON_COUNT
        high = None if high is None else high - MAX_JSON_COUNT
    while high is not None and high > MAX_JSON_COUNT:
        yield low, MAX_JSON_COUNT
        low = 0
        high -= MAX_JSON_COUNT
    if high != 0:
        yield low, high


def _count(low: int, high: int | None) -> str:
    if high is None:
        return {0: "*", 1: "+"}.get(low, f"{{{low},}}")
    return "?" if (low, high) == (0, 1) else f"{{{low},{high}}}"


def _json_class(some: Chars) -> str:
    """The characters that may stand in a JSON string as they are; those with escapes only where there are no others.

    Masks of expressions with escapes take xgrammar a thousand times as long.
    """
    plain = chars.minus(some, chars.complement(PLAIN_IN_JSON))
    if plain:
        classes = [_class(part) for part in _by_lead_byte(plain)]
        return classes[0] if len(classes) == 1 else f"({'|'.join(classes)})"
    letters = "".join(letter for char, letter in JSON_ESCAPES.items() if chars.has(some, char))
    if not letters:
        raise _nothing()
    return f"(\\\\{_by_its_complement(chars.of(letters))})"


def _by_lead_byte(some: Chars) -> list[Chars]:
    """The parts of a set in which xgrammar writes ranges as UTF-8 and as nothing else.

    From a range over several it makes one that begins with the bytes e0 80, too, which are no Unicode.
    """
    starts = [0, *UTF8_STEPS]
    ends = [start - 1 for start in UTF8_STEPS] + [chars.LAST]
    spans = zip(starts, ends, strict=True)
    parts = [chars.minus(some, chars.complement((span,))) for span in spans]
    return [part for part in parts if part]


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
# What stands between the quotes of any JSON string; halves of surrogate pairs do not, not even as escapes. Text without
# escapes is one repeated class: then xgrammar knows ahead which tokens fit.
_TEXT = f"{_class(PLAIN_IN_JSON)}*"
_ESCAPED = (
    f"\\\\({_by_its_complement(ESCAPE_LETTERS)}"
    "|u([0-9abcefABCEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}))"
)
ANY_JSON_TEXT = f"({_TEXT}{_ESCAPED})*{_TEXT}"
