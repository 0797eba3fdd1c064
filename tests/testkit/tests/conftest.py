"""The suites are tried on broken plugins, which they find with all their examples."""

from __future__ import annotations

import pytest

from tenonry_testkit.search import EFFORT_VARIABLE


@pytest.fixture(autouse=True)
def whole_effort(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """`dev.py test` looks at fewer examples; the tier `unit`, which has none of the broken plugins, too."""
    if request.node.get_closest_marker("slow"):
        monkeypatch.setenv(EFFORT_VARIABLE, "1")
