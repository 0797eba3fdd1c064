"""Runs a contract suite without pytest's runner and returns the failing tests, for tests of suites. Test process."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import pytest


def cases_of(
    suite: type, names: Iterable[str] | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(test name, its parameters), with `pytest.mark.parametrize` spelt out; all tests, or those of `names`."""
    chosen = (
        list(names)
        if names is not None
        else [name for name in dir(suite) if name.startswith("test_")]
    )
    for name in chosen:
        marks = [
            mark
            for mark in getattr(getattr(suite, name), "pytestmark", [])
            if mark.name == "parametrize"
        ]
        columns = [_named(*mark.args[:2]) for mark in marks]
        for choice in itertools.product(*columns):
            yield name, {key: value for part in choice for key, value in part.items()}


def _named(names: str, rows: Iterable[Any]) -> list[dict[str, Any]]:
    keys = [name.strip() for name in names.split(",")]
    return [dict(zip(keys, row if len(keys) > 1 else (row,), strict=True)) for row in rows]


def _outcome(case: Any, name: str, parameters: dict[str, Any]) -> BaseException | None:
    getattr(case, "setup_method", _nothing)()
    try:
        getattr(case, name)(**parameters)
    except pytest.skip.Exception:
        return None
    except (Exception, pytest.fail.Exception) as error:  # any exception
        return error
    finally:
        getattr(case, "teardown_method", _nothing)()
    return None


def _nothing() -> None:
    """Do nothing, for suites without setup."""


def failing_tests(suite: type, names: Iterable[str] | None = None) -> dict[str, BaseException]:
    """Test name → the first exception it ends in. Tests with fixtures cannot be run this way."""
    failures: dict[str, BaseException] = {}
    for name, parameters in cases_of(suite, names):
        if name not in failures:
            error = _outcome(suite(), name, parameters)
            if error is not None:
                failures[name] = error
    return failures
