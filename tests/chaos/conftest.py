"""Fixtures of the chaos tests: a real server of the demo model, whose processes meet faults."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "integration"))
sys.path.insert(0, str(Path(__file__).parent))

from disturbed import Disturbed
from ledger import run_all, told_of
from server_process import ForkedServer

FLAGS = (
    "--load-format", "auto", "--worker", "torch", "--device", "cpu", "--dtype", "float32", "--max-num-seqs", "16",
    "--max-model-len", "256", "--max-num-batched-tokens", "64", "--max-round-tokens", "1", "--shutdown-timeout", "5",
    "--engine-recovery", "resume", "--engine-recovery-option", "max_restarts=1000",
)  # fmt: skip


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """The demo model computes on one thread; more would slow each other down."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Disturbed]]:
    """A function that starts servers with faults. Afterwards nothing of them may be there."""
    started: list[Disturbed] = []

    def start(faults: str, *flags: str) -> Disturbed:
        counters = tmp_path_factory.mktemp("counters")
        sockets = tmp_path_factory.mktemp("t")
        server = ForkedServer(
            Path("demo"), *FLAGS, *flags, OMP_NUM_THREADS="1", TMPDIR=str(sockets),
            TENONRY_FAILPOINTS=faults, TENONRY_FAILPOINTS_SHARED=str(counters),
        )  # fmt: skip
        started.append(Disturbed(server, counters, sockets))
        return started[-1]

    yield start
    for each in started:
        each.server.close()


@pytest.fixture(scope="session")
def expected() -> dict[str, dict]:
    """Results of every request without a fault. Computed twice, to check that they are always the same."""
    server = ForkedServer(Path("demo"), *FLAGS, OMP_NUM_THREADS="1")
    try:
        server.ready()
        first, second = run_all(server.url), run_all(server.url)
    finally:
        server.close()
    assert told_of(first) == told_of(second)
    return told_of(first)
