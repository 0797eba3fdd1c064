"""The conformance suite of call sets."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pytest
from tenonry_testkit.call_set import CallSetContract


@pytest.fixture(autouse=True)
def _level() -> Iterator[None]:
    """Engines of the suite run in this process, whose log level they set."""
    logger = logging.getLogger("tenonry")
    before = logger.level
    yield
    logger.setLevel(before)


class TestLogLevels(CallSetContract):
    call_set = "log_levels.plugin:LogLevels"
    calls: ClassVar[Sequence[tuple[str, Sequence[Any]]]] = [("get", []), ("set", ["INFO"])]
