"""Property counts of an object, expanded to sets of properties: for libraries that count only unnamed ones. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from tenonry_grammars.schemas.leaves import NONE, Object

MAX_FORMS = 64


def counted(form: Object) -> list[Object] | None:
    """Forms that together are this one, each with a count only where all properties with a name are required.

    None where a library cannot count: there are too many forms, or two properties without a name might be one.
    """
    names = [name for name, conditions in form.properties if conditions != NONE]
    optional = [name for name in names if name not in form.required]
    is_open = form.rest != NONE or bool(form.patterns)
    low = form.low if form.low > len(form.required) else 0
    most = None if is_open else len(names)
    high = form.high if form.high is not None and (most is None or form.high < most) else None
    if most is not None and low > most:
        return []
    if low > len(form.required) + len(optional) + 1:
        return None  # one of several properties without a name may be written twice
    plain = replace(form, low=0, high=None)
    if not low and high is None:
        return [plain]
    if not optional:
        return [replace(form, low=low, high=high)] if low <= len(form.required) + 1 else None
    found = []
    for chosen, is_last in _choices(optional, low - len(form.required), high, len(form.required)):
        taken = replace(plain, required=(*form.required, *chosen))
        left = (
            optional
            if high is not None
            else optional[: optional.index(chosen[-1]) + 1]
            if chosen
            else []
        )
        if is_last:  # these alone, and perhaps others without a name
            left = optional
        absent = [name for name in left if name not in chosen]
        taken = _without(taken, absent)
        if is_last and is_open:
            missing = 1 if low > len(taken.required) else 0
            if low > len(taken.required) + 1:
                continue
            taken = replace(taken, low=len(taken.required) + missing if missing else 0, high=high)
        elif is_last and low > len(taken.required):
            continue
        found.append(taken)
        if len(found) > MAX_FORMS:
            return None
    return found


def _choices(
    optional: list[str], low: int, high: int | None, num_required: int
) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield (optional properties that are present, True if no other one is)."""
    if high is not None:
        for count in range(min(len(optional), max(0, high - num_required)) + 1):
            for chosen in combinations(optional, count):
                yield chosen, True
        return
    # The first `low` of them that there are, whatever follows; or fewer, and then one without a name.
    for chosen in combinations(optional, max(0, low)):
        yield chosen, False
    if low > 0:
        for chosen in combinations(optional, low - 1):
            yield chosen, True


def _without(form: Object, names: list[str]) -> Object:
    properties = tuple(
        (name, NONE if name in names else conditions) for name, conditions in form.properties
    )
    return replace(form, properties=properties)
