"""Cases of a parametrised test in two tiers: those of every run, and those marked `nightly`. Test process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest


def nightly_unless(is_usual: Callable[..., bool], cases: Iterable[Any]) -> list[Any]:
    """Return `cases` as parameters of pytest; those for which `is_usual` is false are marked `nightly`.

    `is_usual` receives the values of a case, one argument each.
    """
    found = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        marks = () if is_usual(*values) else pytest.mark.nightly
        found.append(pytest.param(*values, marks=marks))
    return found


def diagonal(first: Collection[Any], second: Collection[Any]) -> list[Any]:
    """Return the pairs of two collections as parameters of pytest; each value is in a usual pair, most are `nightly`.

    As many pairs are usual as the longer collection has values.
    """
    period = min(len(first), len(second))
    return [
        pytest.param(one, other, marks=() if (row + column) % period == 0 else pytest.mark.nightly)
        for row, one in enumerate(first)
        for column, other in enumerate(second)
    ]
