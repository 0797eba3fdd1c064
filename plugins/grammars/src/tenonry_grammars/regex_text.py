"""Trees of regular expressions as text that Python's `re` and Rust's `regex` read alike. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from tenonry_grammars import characters as chars
from tenonry_grammars.base import GrammarError
from tenonry_grammars.characters import Chars
from tenonry_grammars.nodes import Choice, Node, One, Repeat, Row


def pattern_text(node: Node) -> str:
    """An expression for the whole text. Raises GrammarError where a set has no character."""
    if isinstance(node, One):
        return _set(node.chars)
    if isinstance(node, Repeat):
        return _atom(node.part) + _count(node.low, node.high)
    if isinstance(node, Row):
        return "".join(
            _atom(part) if isinstance(part, Choice) else pattern_text(part) for part in node.parts
        )
    if isinstance(node, Choice):
        return "|".join(map(pattern_text, node.options))
    raise TypeError(f"{node} has no text")


def excluding_text(texts: Iterable[str]) -> str:
    """An expression that every text but these matches."""
    return _excluding(sorted(set(texts)))


def _excluding(texts: list[str]) -> str:
    """The others are longer than the empty text, or it is one of them; or they begin with another character."""
    rest: dict[str, list[str]] = {}
    for text in texts:
        if text:
            rest.setdefault(text[0], []).append(text[1:])
    others = _set(chars.complement(chars.of("".join(rest))))
    options = [] if "" in texts else [""]
    options.append(f"{others}(?s:.)*")
    options += [f"{_escaped(ord(char))}(?:{_excluding(more)})" for char, more in rest.items()]
    return "|".join(options)


def _atom(node: Node) -> str:
    text = pattern_text(node)
    return text if isinstance(node, One) else f"(?:{text})"


def _count(low: int, high: int | None) -> str:
    if high is None:
        return {0: "*", 1: "+"}.get(low, f"{{{low},}}")
    if low == high:
        return "" if low == 1 else f"{{{low}}}"
    return "?" if (low, high) == (0, 1) else f"{{{low},{high}}}"


@lru_cache(4096)
def _set(some: Chars) -> str:
    if not some:
        raise GrammarError(
            "a class of the regular expression has no character: nothing satisfies it"
        )
    if some == chars.ANY:
        return "(?s:.)"
    if len(some) == 1 and some[0][0] == some[0][1]:
        return _escaped(some[0][0])
    ranges = "".join(
        _escaped(low) if low == high else f"{_escaped(low)}-{_escaped(high)}" for low, high in some
    )
    return f"[{ranges}]"


def _escaped(code: int) -> str:
    char = chr(code)
    if char.isascii() and char.isalnum():
        return char
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
