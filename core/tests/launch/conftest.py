"""A front end in a handshake, and a file for reports of children."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tenonry.launch.handshake import CoreEngine
from tenonry.transport.folder import RunDirectory
from tenonry_testkit.kernel.handshake import FrontEnd


@pytest.fixture
def front_end() -> Iterator[Callable[..., FrontEnd]]:
    run = RunDirectory()
    made: list[FrontEnd] = []

    def make(*engines: CoreEngine) -> FrontEnd:
        made.append(FrontEnd(run, *engines))
        return made[-1]

    yield make
    for front in made:
        front.close()
    run.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "said"
