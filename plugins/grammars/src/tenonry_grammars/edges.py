"""`^` and `$` of a regular expression, wherever they stand, become what may stand before and after a match. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import NamedTuple

from tenonry_grammars.base import GrammarError
from tenonry_grammars.nodes import (
    ANYTHING,
    EMPTY,
    Choice,
    Edge,
    Node,
    Repeat,
    Row,
    is_nullable,
    num_nodes,
)

MAX_SIZE = 10_000  # nodes of one form
MAX_COUNT = 64  # of a repeated part with an edge


class NoTextError(GrammarError):
    """An expression that matches no text."""


class _Form(NamedTuple):
    """One way to match: a node without edges, and whether it has to begin and to end where the text does."""

    begins: bool
    node: Node
    ends: bool


def without_edges(node: Node, *, whole: bool) -> Node:
    """Expression that the whole text has to match. `whole`: `node` describes the whole text already; otherwise a match
    may stand anywhere in the text.

    Raises NoTextError.
    """
    rows = []
    for form in _forms(node):
        parts = [form.node]
        if not (whole or form.begins):
            parts.insert(0, ANYTHING)
        if not (whole or form.ends):
            parts.append(ANYTHING)
        rows.append(parts[0] if len(parts) == 1 else Row(tuple(parts)))
    if not rows:
        raise NoTextError("the regular expression matches no text: nothing satisfies it")
    return _one_of(rows)


def _one_of(options: list[Node]) -> Node:
    return options[0] if len(options) == 1 else Choice(tuple(options))


def _has_edge(node: Node) -> bool:
    if isinstance(node, Repeat):
        return _has_edge(node.part)
    if isinstance(node, Row):
        return any(map(_has_edge, node.parts))
    if isinstance(node, Choice):
        return any(map(_has_edge, node.options))
    return isinstance(node, Edge)


def _forms(node: Node) -> list[_Form]:
    if not _has_edge(node):
        return [_Form(begins=False, node=node, ends=False)]
    if isinstance(node, Edge):
        return [_Form(begins=not node.is_end, node=EMPTY, ends=node.is_end)]
    if isinstance(node, Choice):
        return _together(form for option in node.options for form in _forms(option))
    if isinstance(node, Row):
        found = [_Form(begins=False, node=EMPTY, ends=False)]
        for part in node.parts:
            found = _chained(found, _forms(part))
        return found
    if isinstance(node, Repeat):
        return _repeated(node)
    return []


def _together(forms: Iterable[_Form]) -> list[_Form]:
    """Those with the same edges become one."""
    found: dict[tuple[bool, bool], list[Node]] = {}
    for form in forms:
        found.setdefault((form.begins, form.ends), []).append(form.node)
    together = [_Form(begins, _one_of(nodes), ends) for (begins, ends), nodes in found.items()]
    if sum(num_nodes(form.node) for form in together) > MAX_SIZE:
        raise GrammarError("the regular expression has ^ or $ in too many places")
    return together


def _chained(firsts: list[_Form], seconds: list[_Form]) -> list[_Form]:
    """One after the other; nothing stands before a beginning, or behind an end."""
    found = []
    for first, second in product(firsts, seconds):
        nodes = [first.node, second.node]
        if second.begins:
            if not is_nullable(first.node):
                continue
            nodes[0] = EMPTY
        if first.ends:
            if not is_nullable(second.node):
                continue
            nodes[1] = EMPTY
        parts = [
            part for node in nodes for part in (node.parts if isinstance(node, Row) else (node,))
        ]
        row = parts[0] if len(parts) == 1 else Row(tuple(parts))
        found.append(_Form(first.begins or second.begins, row, first.ends or second.ends))
    return _together(found)


def _repeated(node: Repeat) -> list[_Form]:
    """The part as often as it has to be, then as often as it may be.

    Of the latter only the first may begin with the text, and only the last one end with it.
    """
    if max(node.low, node.high or 0) > MAX_COUNT:
        raise GrammarError("the regular expression has ^ or $ in too many places")
    forms = _forms(node.part)
    found = [_Form(begins=False, node=EMPTY, ends=False)]
    for _ in range(node.low):
        found = _chained(found, forms)
    return _chained(found, _optional(forms, None if node.high is None else node.high - node.low))


def _optional(forms: list[_Form], most: int | None) -> list[_Form]:
    """Up to `most` of them, one after the other."""
    empty = _Form(begins=False, node=EMPTY, ends=False)
    if most == 0:
        return [empty]
    by_edges = {(form.begins, form.ends): form for form in forms}
    found = [empty]
    both = by_edges.get((True, True))
    if both is not None:
        found.append(both)
    for first in (None, by_edges.get((True, False))):
        for last in (None, by_edges.get((False, True))):
            fixed = [form for form in (first, last) if form is not None]
            if most is None or len(fixed) <= most:
                found += _filled(first, by_edges.get((False, False)), last, most)
    return _together(found)


def _filled(
    first: _Form | None, free: _Form | None, last: _Form | None, most: int | None
) -> list[_Form]:
    """`first`, then free ones, then `last`; up to `most` in all."""
    middle = None
    if free is not None:
        left = None if most is None else most - (first is not None) - (last is not None)
        middle = _Form(begins=False, node=Repeat(free.node, 0, left), ends=False)
    found = [_Form(begins=False, node=EMPTY, ends=False)]
    for form in (first, middle, last):
        if form is not None:
            found = _chained(found, [form])
    return found
