"""The forms that a grammar backend writes, of all places of a schema, without those that no value has. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, combinations, permutations, product
from operator import eq

from tenonry_grammars import characters as chars
from tenonry_grammars.automata import combined
from tenonry_grammars.base import GrammarError
from tenonry_grammars.derivatives import NOTHING, alternatives, are_apart, without
from tenonry_grammars.nodes import ANYTHING, Choice, Node, One, Repeat
from tenonry_grammars.schema import pointer
from tenonry_grammars.schemas.counts import counted
from tenonry_grammars.schemas.expressions import matches
from tenonry_grammars.schemas.leaves import (
    ANY,
    NONE,
    Anything,
    Array,
    Conditions,
    Leaf,
    Object,
    Sub,
    Text,
    Unserved,
    both,
    item,
    lowest,
    of_property,
)
from tenonry_grammars.schemas.opposites import HELP
from tenonry_grammars.schemas.reading import Reader

# Keywords that need the opposite of a schema.
NEGATING = ("not", "oneOf", "if", "dependencies", "dependentSchemas")
Patterns = tuple[tuple[Node, Conditions], ...]
MAX_OVERLAPPING = 3  # patterns
MAX_DISTINCT = 4  # values whose arrays without equal items are listed


class Forms:
    """`of`: forms by conditions, for all that the root leads to. Raises GrammarError with a path for what is refused,
    and where nothing satisfies the schema.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.of: dict[Conditions, list[Leaf]] = {}
        waiting = [reader.root]
        while waiting:
            conditions = waiting.pop()
            if conditions not in self.of:
                self.of[conditions] = self._served(conditions)
                for leaf in self.of[conditions]:
                    waiting.extend(below(leaf))
        self._satisfied: set[Conditions] = {ANY}
        self._find_satisfied()
        for conditions, leaves in self.of.items():
            self.of[conditions] = [leaf for leaf in leaves if self._is_satisfied(leaf)]
        if not self.of[reader.root]:
            raise GrammarError("nothing satisfies it", "")

    def is_satisfied(self, conditions: Conditions) -> bool:
        """Return True if some value satisfies the conditions."""
        return conditions in self._satisfied

    # ------------------------------------------------------------------ what no value has
    def _find_satisfied(self) -> None:
        """Those with a value of finite depth, which is found from the leaves up."""
        is_growing = True
        while is_growing:
            found = {
                conditions
                for conditions, leaves in self.of.items()
                if conditions not in self._satisfied and any(map(self._is_satisfied, leaves))
            }
            self._satisfied |= found
            is_growing = bool(found)

    def _is_satisfied(self, leaf: Leaf) -> bool:
        if isinstance(leaf, Sub):
            return leaf.conditions in self._satisfied
        if isinstance(leaf, Array):
            return all(
                item(leaf, place) in self._satisfied
                for place in range(min(leaf.low, len(leaf.first) + 1))
            )
        if isinstance(leaf, Object):
            known = dict(leaf.properties)
            needs_other = leaf.low > len(leaf.required)
            others = [conditions for _, conditions in leaf.patterns] + [leaf.rest]
            return all(known[name] in self._satisfied for name in leaf.required) and (
                not needs_other or any(conditions in self._satisfied for conditions in others)
            )
        return True

    # ------------------------------------------------------------------ what can be written
    def _served(self, conditions: Conditions) -> list[Leaf]:
        leaves = [
            leaf for leaf in self._reader.leaves(conditions) if not self._reader.has_no_value(leaf)
        ]
        found = list(chain.from_iterable(map(self._simple, leaves)))
        served: list[Leaf] = [leaf for leaf in found if not isinstance(leaf, Unserved)]
        for leaf in found:
            if isinstance(leaf, Unserved) and not (leaf.is_opposite and served):
                path, keyword = leaf.location
                raise GrammarError(leaf.text, pointer(path), keyword or None)
        return served

    def _simple(self, leaf: Leaf) -> list[Leaf]:
        if isinstance(leaf, Object):
            return self._objects(leaf)
        if isinstance(leaf, Array):
            return self._arrays(leaf)
        return [leaf]

    def _objects(self, leaf: Object) -> list[Leaf]:
        if not leaf.expected <= leaf.declared:
            names = ", ".join(sorted(leaf.expected - leaf.declared))
            text = (
                f"a property that only an excluded schema has is needed here: {names:.64}; add it to 'properties', or "
                "use 'anyOf' instead of 'oneOf'"
            )
            return [_unserved(leaf, text, *NEGATING, is_opposite=True)]
        properties = dict(leaf.properties)
        for name in leaf.required:
            properties.setdefault(name, of_property(leaf, name, matches))
        if leaf.outside:
            return self._outside(leaf)
        whole = replace(
            leaf, properties=tuple(properties.items()), declared=frozenset(), expected=frozenset()
        )
        if leaf.names != ANY:
            named = self._named(whole)
            if named is None:
                text = "'propertyNames' takes too large an expression with the other rules; simplify it or leave it out"
                return [_unserved(leaf, text, "propertyNames")]
            whole = named
        apart = _with_patterns_apart(whole)
        if apart is None:
            text = (
                "one name may match two expressions of 'patternProperties', which is not served; give both the same "
                "schema, or expressions that begin differently"
            )
            return [_unserved(leaf, text, "patternProperties", "propertyNames")]
        found = counted(apart)
        if found is None:
            text = (
                "'minProperties' or 'maxProperties' is not served where many properties are optional "
                "or have no name; list them in 'required' or leave the count out"
            )
            return [_unserved(leaf, text, "minProperties", "maxProperties")]
        return [
            form
            for form in found
            if all(dict(form.properties)[name] != NONE for name in form.required)
        ]

    def _outside(self, leaf: Object) -> list[Leaf]:
        """With a property that one of the sets of names does not have, of those that the schema speaks of."""
        names, *others = leaf.outside
        known = [
            name
            for name, conditions in leaf.properties
            if conditions != NONE and name in leaf.declared
        ]
        chosen = [name for name in known if name not in names]
        if not chosen:
            text = (
                f"an object with a property that 'properties' does not name is needed here; {HELP}"
            )
            return [_unserved(leaf, text, *NEGATING, is_opposite=True)]
        if set(chosen) & set(leaf.required):
            chosen = [next(name for name in chosen if name in leaf.required)]
        found: list[Leaf] = []
        for name in chosen:
            required = tuple(dict.fromkeys((*leaf.required, name)))
            found += self._objects(replace(leaf, required=required, outside=tuple(others)))
        return found

    def _named(self, leaf: Object) -> Object | None:
        """With what `propertyNames` says in patterns; None where that cannot be."""
        leaves = self._reader.expanded(self._reader.leaves(leaf.names))
        if Anything() in leaves:
            return replace(leaf, names=ANY)
        if any(isinstance(one, Unserved) for one in leaves):
            return None
        texts = [one for one in leaves if isinstance(one, Text)]
        allowed = {name: any(_is_text(name, text) for text in texts) for name, _ in leaf.properties}
        listed = {value: None for text in texts for value in text.values or ()}
        properties = (
            *((name, inner if allowed[name] else NONE) for name, inner in leaf.properties),
            *((name, of_property(leaf, name, matches)) for name in listed if name not in allowed),
        )
        nodes = [text_node(text) for text in texts if text.values is None]
        names = [node for node in nodes if node is not None]
        patterns = _named_patterns(leaf, names) if len(names) == len(nodes) else None
        if patterns is None:
            return None
        return replace(leaf, properties=properties, patterns=patterns, rest=NONE, names=ANY)

    def _arrays(self, leaf: Array) -> list[Leaf]:
        if leaf.unique is None:
            return [leaf]
        most = leaf.high
        if leaf.rest == NONE:
            most = len(leaf.first) if most is None else min(most, len(leaf.first))
        if most is not None and most <= 1:
            return [replace(leaf, unique=None)]
        values = self._values(leaf.rest) if not leaf.first else None
        if values is None:
            text = f"'uniqueItems' is served for at most {MAX_DISTINCT} different items, listed in 'enum'; leave it out"
            return [Unserved(frozenset({"array"}), leaf.unique, text)]
        longest = len(values) if most is None else min(most, len(values))
        return [
            Array(chosen, NONE, count, count)
            for count in range(leaf.low, longest + 1)
            for chosen in permutations(values, count)
        ]

    def _values(self, conditions: Conditions) -> list[Conditions] | None:
        """Conditions of each value alone, where there are few."""
        return self._reader.each_value(conditions, MAX_DISTINCT)


def _unserved(leaf: Object, text: str, *keywords: str, is_opposite: bool = False) -> Unserved:
    return Unserved(frozenset({"object"}), leaf.source(*keywords), text, is_opposite)


def _with_patterns_apart(leaf: Object) -> Object | None:
    """Patterns with the same schema as one; None where a name may match two that differ."""
    by_conditions: dict[Conditions, list[Node]] = {}
    for node, conditions in leaf.patterns:
        by_conditions.setdefault(conditions, []).append(node)
    patterns = tuple(
        (nodes[0] if len(nodes) == 1 else Choice(tuple(nodes)), conditions)
        for conditions, nodes in by_conditions.items()
    )
    known = [name for name, _ in leaf.properties]
    others = [without(node, known) for node, _ in patterns]
    if all(are_apart(one, other) for one, other in combinations(others, 2)):
        return replace(leaf, patterns=patterns)
    cells = _cells(patterns)
    return None if cells is None else replace(leaf, patterns=cells)


def _named_patterns(leaf: Object, names: list[Node]) -> Patterns | None:
    """Patterns of names that one of `names` matches, with what holds for them; None where they are too large."""
    name = alternatives(names)
    if name == NOTHING or (leaf.rest == NONE and not leaf.patterns):
        return ()
    return _cells(leaf.patterns, name, leaf.rest) if leaf.patterns else ((name, leaf.rest),)


def _cells(
    patterns: Patterns, name: Node = ANYTHING, rest: Conditions | None = None
) -> Patterns | None:
    """Patterns of which no two match one name: for each set of them, names that match these alone, and `name`.

    `rest` holds for those that match none of them, if it is not left to others. None where they are too large.
    """
    if len(patterns) > MAX_OVERLAPPING:
        return None
    found = []
    nodes = [name, *(node for node, _ in patterns)]
    for wanted in product((False, True), repeat=len(patterns)):
        if not any(wanted) and rest is None:
            continue
        node = combined(nodes, partial(eq, (True, *wanted)))
        if node is None:
            return None
        whole = ANY
        for (_, conditions), is_matched in zip(patterns, wanted, strict=True):
            whole = both(whole, conditions) if is_matched else whole
        if node != NOTHING:
            found.append((node, whole if any(wanted) else rest or ANY))
    return tuple(found)


def _is_text(name: str, text: Text) -> bool:
    if text.values is not None:
        return name in text.values
    is_long = text.low <= len(name) and (text.high is None or len(name) <= text.high)
    return (
        is_long and name not in text.others and all(matches(node, name) for node in text.patterns)
    )


def text_node(text: Text) -> Node | None:
    """One expression for the texts of a form without `values`; None where it is too large."""
    nodes = list(text.patterns)
    if text.low or text.high is not None:
        nodes.append(Repeat(One(chars.ANY), text.low, text.high))
    first = nodes[0] if nodes else ANYTHING
    if len(nodes) == 2 and isinstance(first, Repeat) and isinstance(first.part, One):
        high = lowest(first.high, text.high)
        node: Node | None = Repeat(first.part, max(first.low, text.low), high)
        if high is not None and high < max(first.low, text.low):
            node = NOTHING
    else:
        node = combined(nodes, all) if len(nodes) > 1 else first
    return None if node is None else without(node, text.others)


def below(leaf: Leaf) -> Iterator[Conditions]:
    """The conditions of places within a form."""
    if isinstance(leaf, Sub):
        yield leaf.conditions
    elif isinstance(leaf, Array):
        yield from leaf.first
        yield leaf.rest
    elif isinstance(leaf, Object):
        for _, conditions in (*leaf.properties, *leaf.patterns):
            yield conditions
        yield leaf.rest
