"""A front end in a handshake, and a supervisor with a file for what its children report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tenonry.launch.forks import IS_SUPPORTED
from tenonry.launch.handshake import CoreEngine
from tenonry.launch.supervise import Child, Supervisor, start_fork_server
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


class ForkingSupervisor(Supervisor):
    """Its children are forks of a process that has imported what these tests run."""

    def __init__(self) -> None:
        super().__init__()
        self.forks = start_fork_server("tenonry_testkit.kernel.fork_roles:imports", "")

    def start(self, *args: Any, **options: Any) -> Child:
        return super().start(*args, forks=self.forks, **options)


@pytest.fixture(params=[Supervisor, ForkingSupervisor], ids=["fresh", "forked"])
def supervisor(request: pytest.FixtureRequest) -> Iterator[Supervisor]:
    if request.param is ForkingSupervisor and not IS_SUPPORTED:
        pytest.skip("needs Linux")
    made: Supervisor = request.param()
    yield made
    made.stop(0.1)
    if isinstance(made, ForkingSupervisor):
        made.forks.close()
