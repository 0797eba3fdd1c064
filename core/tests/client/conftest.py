"""One engine for the tests of a module that leave it as they found it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tenonry_testkit.kernel.served import Served
from tenonry_testkit.plugins import TmpPlugins, fake_model_installed


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with fake_model_installed(tmp_path_factory.mktemp("served")):
        served = Served()
        yield served
        served.close()


@pytest.fixture
def serve(fake_model_site: TmpPlugins) -> Iterator[Callable[..., Served]]:
    """Start an engine of the test's own."""
    made: list[Served] = []

    def start(**values: Any) -> Served:
        made.append(Served(**values))
        return made[-1]

    yield start
    for served in made:
        served.close()
