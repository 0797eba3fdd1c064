"""Look-ahead at the beginning of an expression, as conditions of their own for the same text. Pure.

`^(?=A)(?!B)C` matches a text that begins with A and with C, and not with B. pydantic writes numbers so, and people
passwords; look-ahead elsewhere is not regular enough to be taken apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from tenonry_grammars.automata import combined
from tenonry_grammars.base import GrammarError
from tenonry_grammars.nodes import Node
from tenonry_grammars.schemas.expressions import expression


@lru_cache(4096)
def conditions_of(pattern: str) -> tuple[Node, ...]:
    """Expressions for whole texts, all of which match where `pattern` of a schema does. Raises GrammarError."""
    ahead, rest = _taken_apart(pattern)
    nodes = [expression(rest)]
    for is_wanted, inner in ahead:
        node: Node | None = expression(f"^(?:{inner})", widest=not is_wanted)
        if not is_wanted and node is not None:
            node = combined([node], _matches_none)
        if node is None:
            raise GrammarError(
                f"the look-ahead (?!{inner}) takes too large an expression; simplify it"
            )
        nodes.append(node)
    return tuple(dict.fromkeys(nodes))


def _matches_none(found: tuple[bool, ...]) -> bool:
    return not any(found)


def _taken_apart(pattern: str) -> tuple[list[tuple[bool, str]], str]:
    """Each look-ahead at the beginning, True for one that has to match, and the rest; or the pattern as it is."""
    ahead = []
    place = 1
    while pattern.startswith(("(?=", "(?!"), place):
        closed = [at for at, mark, depth in _marks(pattern, place) if mark == ")" and depth == 1]
        if not closed:
            return [], pattern
        ahead.append((pattern[place + 2] == "=", pattern[place + 3 : closed[0]]))
        place = closed[0] + 1
    has_choice = any(mark == "|" and not depth for _, mark, depth in _marks(pattern, place))
    if not pattern.startswith("^") or has_choice:
        return [], pattern
    return ahead, "^" + pattern[place:]


def _marks(pattern: str, place: int) -> Iterator[tuple[int, str, int]]:
    """Parentheses and bars outside classes, with the number of groups around them."""
    depth = 0
    is_class = False
    while place < len(pattern):
        char = pattern[place]
        if char == "\\":
            place += 1
        elif is_class:
            is_class = char != "]"
        elif char == "[":
            is_class = True
        elif char in "()|":
            depth += char == "("
            yield place, char, depth
            depth -= char == ")"
        place += 1
