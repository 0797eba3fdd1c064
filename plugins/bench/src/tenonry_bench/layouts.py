"""Several engines behind one front end, as benchmarks compare them: how many, how balanced, with which processes.

The measuring process is the front end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tenonry.config import EngineConfig, PluginChoice
from tenonry_bench.processes import below

if TYPE_CHECKING:
    import psutil

    from tenonry.client.async_llm import AsyncLLM

T = TypeVar("T")


class Layout(NamedTuple):
    """`coordinated`: with a coordinator, which one front end alone does not need."""

    name: str
    engines: int
    balancing: str = "affinity"
    coordinated: bool = False

    def config(self, base: EngineConfig) -> EngineConfig:
        """Return `base` with this number of engines and this balancing."""
        return base.replaced(
            data_parallel_size=self.engines, load_balancer=PluginChoice(name=self.balancing)
        )


@contextlib.contextmanager
def started(
    layout: Layout, config: EngineConfig
) -> Iterator[tuple[AsyncLLM, list[psutil.Process]]]:
    """The front end of a layout and the processes that came with it; all are gone afterwards."""
    from tenonry.client.async_llm import AsyncLLM
    from tenonry.client.engines import OwnedEngines

    before = below()
    config = layout.config(config)
    engine = AsyncLLM(config, engines=OwnedEngines(config, coordinated=layout.coordinated))
    try:
        yield engine, [process for process in below() if process not in before]
    finally:
        engine.shutdown()


def alternated(items: Sequence[T], run: int) -> list[T]:
    """Compared items, forwards in even runs and backwards in odd ones, so that a drift of the machine affects all."""
    return list(items) if run % 2 == 0 else list(reversed(items))
