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
    """Records graphs that share memory for what they compute in between; one is replayed at a time."""

    def record(self, launch: Callable[[], object]) -> Graph:
        """The graph of what `launch` launches, which has run before, so that what is made once is there.

        Raises RuntimeError where the driver or an operation does not allow it.
        """
        ...

    def release(self) -> None:
        """All graphs were dropped: free the memory that they shared."""
        ...


class CudaGraphs:
    """Implements `GraphMaker` on a CUDA device."""

    def __init__(self) -> None:
        self._pool: object | None = None

    def record(self, launch: Callable[[], object]) -> Graph:
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        # Other threads look at events of earlier steps meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            launch()
        return graph

    def release(self) -> None:
        self._pool = None
