"""Trees of regular expressions. Pure.

Nodes are keys of many tables, so those with parts know their hash.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tenonry_grammars import characters as chars
from tenonry_grammars.characters import Chars


@dataclass(frozen=True, slots=True)
class One:
    """One character of a set."""

    chars: Chars


@dataclass(frozen=True, slots=True)
class Repeat:
    """`part` at least `low` times, at most `high` times, without a limit for None."""

    part: Node
    low: int
    high: int | None
    code: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "code", hash((self.part, self.low, self.high)))

    def __hash__(self) -> int:
        return self.code


@dataclass(frozen=True, slots=True)
class Row:
    """One part after another."""

    parts: tuple[Node, ...] = ()
    code: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "code", hash((Row, self.parts)))

    def __hash__(self) -> int:
        return self.code


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the options."""

    options: tuple[Node, ...]
    code: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "code", hash((Choice, self.options)))

    def __hash__(self) -> int:
        return self.code


@dataclass(frozen=True, slots=True)
class Edge:
    """`^` or `$`; there are none in what `parsed` returns."""

    is_end: bool


Node = One | Repeat | Row | Choice | Edge
ANYTHING = Repeat(One(chars.ANY), 0, None)
EMPTY = Row()


def is_nullable(node: Node) -> bool:
    """Return True if the node matches the empty text."""
    if isinstance(node, Repeat):
        return node.low == 0 or is_nullable(node.part)
    if isinstance(node, Row):
        return all(map(is_nullable, node.parts))
    return isinstance(node, Choice) and any(map(is_nullable, node.options))


def num_nodes(node: Node) -> int:
    """Size of a tree, with equal parts counted wherever they stand."""
    if isinstance(node, Repeat):
        return 1 + num_nodes(node.part)
    if isinstance(node, Row):
        return 1 + sum(map(num_nodes, node.parts))
    return 1 + sum(map(num_nodes, node.options)) if isinstance(node, Choice) else 1


def all_sets(node: Node) -> Iterator[Chars]:
    """The sets of characters in a tree; those of equal parts once."""
    waiting = [node]
    seen: set[Node] = set()
    while waiting:
        part = waiting.pop()
        if part in seen:
            continue
        seen.add(part)
        if isinstance(part, One):
            yield part.chars
        elif isinstance(part, Repeat):
            waiting.append(part.part)
        elif isinstance(part, Row | Choice):
            waiting += part.parts if isinstance(part, Row) else part.options


def finite_texts(node: Node, limit: int) -> list[str] | None:
    """All texts that it matches, in order; None for more than `limit`."""
    if isinstance(node, One):
        if sum(high - low + 1 for low, high in node.chars) > limit:
            return None
        return [chr(code) for low, high in node.chars for code in range(low, high + 1)]
    if isinstance(node, Choice):
        found = [finite_texts(option, limit) for option in node.options]
        return (
            _joined([""], [text for texts in found for text in texts or ()], limit)
            if None not in found
            else None
        )
    if isinstance(node, Repeat):
        return _repeated_texts(node, limit)
    texts: list[str] | None = [""]
    for part in node.parts if isinstance(node, Row) else ():
        following = finite_texts(part, limit)
        if texts is None or following is None:
            return None
        texts = _joined(texts, following, limit)
    return texts


def _repeated_texts(node: Repeat, limit: int) -> list[str] | None:
    part = finite_texts(node.part, limit)
    if node.high == 0 or part == [""]:
        return [""]
    if part is None or node.high is None or node.high > limit:
        return None
    texts: list[str] | None = [""]
    found: list[str] = []
    for count in range(node.high + 1):
        if texts is None:
            return None
        if count >= node.low:
            found += texts
        texts = _joined(texts, part, limit)
    return _joined([""], found, limit)


def _joined(firsts: list[str], seconds: list[str], limit: int) -> list[str] | None:
    if len(firsts) * len(seconds) > limit * limit:
        return None
    texts = list(dict.fromkeys(first + second for first in firsts for second in seconds))
    return texts if len(texts) <= limit else None
