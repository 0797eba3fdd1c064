"""Runs a contract suite without pytest's runner and says which of its tests fail, for tests of suites. Test process."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any


def cases_of(suite: type, names: Iterable[str] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """(test name, its parameters), with `pytest.mark.parametrize` spelt out; all tests, or those of `names`."""
    chosen = list(names) if names is not None else [name for name in dir(suite) if name.startswith("test_")]
    for name in chosen:
        marks = [mark for mark in getattr(getattr(suite, name), "pytestmark", []) if mark.name == "parametrize"]
        columns = [_named(*mark.args[:2]) for mark in marks]
        for choice in itertools.product(*columns):
            yield name, {key: value for part in choice for key, value in part.items()}


def _named(names: str, rows: Iterable[Any]) -> list[dict[str, Any]]:
    keys = [name.strip() for name in names.split(",")]
    return [dict(zip(keys, row if len(keys) > 1 else (row,), strict=True)) for row in rows]


def failing_tests(suite: type, names: Iterable[str] | None = None) -> dict[str, Exception]:
    """Test name → the first exception it ends in. Tests that ask for fixtures cannot be run this way."""
    failures: dict[str, Exception] = {}
    for name, parameters in cases_of(suite, names):
        if name not in failures:
            try:
                getattr(suite(), name)(**parameters)
            except Exception as error:
                failures[name] = error
    return failures
