"""Recording of launches, to be repeated by one: a protocol, and CUDA's graphs. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


class Graph(Protocol):
    """Recorded launches."""

    def replay(self) -> None:
        """Launch all of them again, over the memory that they were recorded with."""
        ...


class GraphMaker(Protocol):
    """Records graphs that share memory for intermediate results; one is replayed at a time."""

    def record(self, launch: Callable[[], object]) -> Graph:
        """Return the graph of the launches of `launch`, which has run before, so that lazily created objects exist.

        Raises RuntimeError if the driver or an operation does not permit it.
        """
        ...

    def release(self) -> None:
        """Free the shared memory after all graphs were dropped."""
        ...


class CudaGraphs:
    """Implements `GraphMaker` on a CUDA device."""

    def __init__(self) -> None:
        self._pool: object | None = None

    def record(self, launch: Callable[[], object]) -> Graph:
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        # Other threads query events of earlier steps concurrently.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            launch()
        return graph

    def release(self) -> None:
        self._pool = None
