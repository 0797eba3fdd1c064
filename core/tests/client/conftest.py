"""One engine for the tests of a module that leave it as they found it, and engines of a test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tenonry import LLM
from tenonry.client import input_processor
from tenonry_testkit.kernel.served import Served, served_config, serving
from tenonry_testkit.plugins import TmpPlugins, fake_model_installed


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with fake_model_installed(tmp_path_factory.mktemp("served")):
        served = Served(max_loras=1)
        yield served
        served.close()


@pytest.fixture
def served(shared: Served) -> Iterator[Served]:
    """The shared engine; afterwards it is idle and open."""
    yield shared
    assert shared.engine.num_unfinished_requests == 0
    assert not shared.engine.errored
    shared.run(shared.counts_are(0, 0))


@pytest.fixture
def threads(served: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every text counts as long; the threads that tokenise it end with the test."""
    monkeypatch.setattr(input_processor, "LONG_TEXT_CHARS", 1)
    with ThreadPoolExecutor() as pool:
        served.runner.get_loop().set_default_executor(pool)
        yield


@pytest.fixture
def serve(fake_model_site: TmpPlugins) -> Iterator[Callable[..., Served]]:
    """Start an engine of the test's own."""
    with serving() as start:
        yield start


@pytest.fixture
def make_llm(tmp_path: Path) -> Iterator[Callable[..., LLM]]:
    """Build an LLM; all end with the test."""
    made: list[LLM] = []

    def build(**values: Any) -> LLM:
        config = served_config(**{"worker": "tenonry_testkit.fakes:FakeWorker", **values})
        made.append(LLM(config=config))
        return made[-1]

    with fake_model_installed(tmp_path / "model"):
        yield build
    for llm in made:
        llm.shutdown()
