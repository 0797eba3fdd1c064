"""Engines of a test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tenonry_testkit.kernel.served import Served
from tenonry_testkit.plugins import TmpPlugins


@pytest.fixture(autouse=True)
def _clean(no_outside_settings: None) -> None:
    """For every test."""


@pytest.fixture
def serve(fake_model_site: TmpPlugins) -> Iterator[Callable[..., Served]]:
    """Start an engine of the test's own."""
    made: list[Served] = []

    def start(**values: Any) -> Served:
        made.append(Served(**{"engine_recovery": "resume", **values}))
        return made[-1]

    yield start
    for served in made:
        served.close()
