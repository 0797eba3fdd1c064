"""Expressions for texts that match some expressions and not others: intersections, differences, complements. Pure.

Derivatives give an automaton, whose states are eliminated one after another until one expression is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tenonry_grammars import characters as chars
from tenonry_grammars.characters import Chars
from tenonry_grammars.derivatives import (
    NOTHING,
    alternatives,
    derivative,
    first_sets,
    range_starts,
    sequence,
)
from tenonry_grammars.nodes import EMPTY, Node, One, Repeat, is_nullable, num_nodes

State = tuple[Node, ...]
Edges = dict[int, dict[int, Node]]
MAX_STATES = 40
MAX_NODES = 4000  # of an expression


def combined(nodes: Sequence[Node], is_wanted: Callable[[tuple[bool, ...]], bool]) -> Node | None:
    """The texts for which `is_wanted` holds of which nodes match them; None where that takes too large an expression.

    `NOTHING` where there are none.
    """
    states = _states(tuple(nodes))
    if states is None:
        return None
    start, end = len(states), len(states) + 1
    edges: Edges = {start: {0: EMPTY}}
    for number, (state, following) in enumerate(states.items()):
        edges[number] = {target: One(some) for target, some in following.items()}
        if is_wanted(tuple(map(is_nullable, state))):
            edges[number][end] = EMPTY
    return _eliminated(edges, start, end)


def _states(first: State) -> dict[State, dict[int, Chars]] | None:
    """The characters that lead from each state to the one of each number; None for too many states."""
    numbers = {first: 0}
    found: dict[State, dict[int, Chars]] = {}
    waiting = [first]
    while waiting:
        state = waiting.pop(0)
        following: dict[int, Chars] = {}
        starts = range_starts(some for node in state for some in first_sets(node))
        for low, after in zip(starts, [*starts[1:], chars.LAST + 1], strict=True):
            some = chars.minus(((low, after - 1),), chars.SURROGATES)
            target = tuple(derivative(node, low) for node in state)
            if not some:
                continue
            if target not in numbers:
                numbers[target] = len(numbers)
                waiting.append(target)
            number = numbers[target]
            following[number] = chars.union(following.get(number, ()), some)
        found[state] = following
        if len(numbers) > MAX_STATES:
            return None
    return found


def _eliminated(edges: Edges, start: int, end: int) -> Node | None:
    """The expression between two states, when all others are eliminated; the least connected ones first."""
    left = set(edges) - {start}
    while left:
        state = min(left, key=lambda each: _num_ways(edges, each))
        left.discard(state)
        out = edges.pop(state)
        loop = out.pop(state, None)
        between = [] if loop is None else [Repeat(loop, 0, None)]
        for targets in edges.values():
            into = targets.pop(state, None)
            if into is None:
                continue
            for target, node in out.items():
                way = sequence([into, *between, node])
                joined = alternatives([targets.get(target, NOTHING), way])
                if num_nodes(joined) > MAX_NODES:
                    return None
                targets[target] = joined
    return edges[start].get(end, NOTHING)


def _num_ways(edges: Edges, state: int) -> int:
    num_into = sum(state in targets for source, targets in edges.items() if source != state)
    return num_into * len(edges[state].keys() - {state})
