"""Brzozowski derivatives of regular expressions, and comparisons based on them. Pure.

J. A. Brzozowski, "Derivatives of Regular Expressions", Journal of the ACM 11 (1964).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from tenonry_grammars import characters as chars
from tenonry_grammars.characters import Chars
from tenonry_grammars.nodes import EMPTY, Choice, Node, One, Repeat, Row, is_nullable

NOTHING: Node = Choice(())
MAX_PAIRS = 200  # of what follows, which are compared


def are_apart(one: Node, other: Node) -> bool:
    """Return True if it is certain that no text matches both."""
    waiting = [(one, other)]
    seen = {(one, other)}
    while waiting:
        first, second = waiting.pop()
        if is_nullable(first) and is_nullable(second):
            return False
        for char in _samples(first_sets(first), first_sets(second)):
            pair = derivative(first, char), derivative(second, char)
            if NOTHING not in pair and pair not in seen:
                seen.add(pair)
                waiting.append(pair)
        if len(seen) > MAX_PAIRS:
            return False
    return True


def without(node: Node, texts: Iterable[str]) -> Node:
    """The same expression, except that it does not match `texts`."""
    excluded = set(texts)
    if not excluded or node == NOTHING:
        return node
    options: list[Node] = []
    if is_nullable(node) and "" not in excluded:
        options.append(EMPTY)
    rest: dict[str, set[str]] = {}
    for text in excluded - {""}:
        rest.setdefault(text[0], set()).add(text[1:])
    for char, following in sorted(rest.items()):
        options.append(
            sequence([One(chars.of(char)), without(derivative(node, ord(char)), following)])
        )
    excluded_firsts = chars.of("".join(rest))
    by_next: dict[Node, Chars] = {}
    firsts = first_sets(node)
    for place, low in enumerate(starts := range_starts(firsts)):
        high = starts[place + 1] - 1 if place + 1 < len(starts) else chars.LAST
        some = chars.minus(((low, high),), excluded_firsts)
        following_node = derivative(node, low)
        if some and following_node != NOTHING:
            by_next[following_node] = chars.union(by_next.get(following_node, ()), some)
    options += [sequence([One(some), following_node]) for following_node, some in by_next.items()]
    return alternatives(options)


@lru_cache(8192)
def derivative(node: Node, char: int) -> Node:
    """Continuations after this character, given as its code point."""
    if isinstance(node, One):
        return EMPTY if any(low <= char <= high for low, high in node.chars) else NOTHING
    if isinstance(node, Choice):
        return alternatives([derivative(option, char) for option in node.options])
    if isinstance(node, Repeat):
        if node.high == 0:
            return NOTHING
        high = None if node.high is None else node.high - 1
        rest = Repeat(node.part, max(0, node.low - 1), high) if high != 0 else EMPTY
        return sequence([derivative(node.part, char), rest])
    parts = node.parts if isinstance(node, Row) else ()
    options = []
    for place, part in enumerate(parts):
        options.append(sequence([derivative(part, char), *parts[place + 1 :]]))
        if not is_nullable(part):
            break
    return alternatives(options)


def sequence(parts: list[Node]) -> Node:
    """One part after another."""
    if NOTHING in parts:
        return NOTHING
    flat = [inner for part in parts for inner in (part.parts if isinstance(part, Row) else (part,))]
    return flat[0] if len(flat) == 1 else Row(tuple(flat))


def alternatives(options: list[Node]) -> Node:
    """One of the options; `NOTHING` for none."""
    found: dict[Node, None] = {}
    for option in options:
        found.update(dict.fromkeys(option.options if isinstance(option, Choice) else (option,)))
    return next(iter(found)) if len(found) == 1 else Choice(tuple(found))


def first_sets(node: Node) -> set[Chars]:
    """Sets that contain all first characters."""
    if isinstance(node, One):
        return {node.chars}
    if isinstance(node, Choice):
        return {some for option in node.options for some in first_sets(option)}
    if isinstance(node, Repeat):
        return first_sets(node.part) if node.high != 0 else set()
    found: set[Chars] = set()
    for part in node.parts if isinstance(node, Row) else ():
        found |= first_sets(part)
        if not is_nullable(part):
            break
    return found


def range_starts(sets: Iterable[Chars]) -> list[int]:
    """Sorted first characters of ranges within which all characters are in the same sets."""
    found = {0}
    for some in sets:
        for low, high in some:
            found |= {low, high + 1}
    return sorted(code for code in found if code <= chars.LAST)


def _samples(*sets: set[Chars]) -> list[int]:
    """One character for each way in which it may be in the sets."""
    return range_starts(some for group in sets for some in group)
