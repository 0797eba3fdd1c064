"""Capability flags of suites: class attributes that declare missing capabilities of a plugin. Test process.

    class TestCounting(WorkerContract):
        worker = "counting.py:Counting"
        supports_logprobs = False

Tests that need the capability are then skipped, with the flag as their reason, which `tenonry plugins check` shows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest


def requires(flag: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Skip a test of a suite whose class sets `flag` to False."""

    def mark(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(self: Any, *arguments: Any, **fixtures: Any) -> None:
            if not getattr(self, flag):
                pytest.skip(f"{type(self).__name__}.{flag} = False")
            test(self, *arguments, **fixtures)

        return run

    return mark
