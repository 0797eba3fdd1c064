"""Graphs without a GPU: operations of torch are recorded, and replayed with the tensors that they were recorded with.

As on a GPU, recording leaves all memory as it was, a value that the host computed meanwhile stays as it was then, and a
value read from a tensor ends the recording.
"""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

READS = {"aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero", "aten::equal"}


class Recorder(TorchDispatchMode):
    def __init__(self, calls):
        super().__init__()
        self.calls = calls
        self.written = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.name().partition(".")[0] in READS:
            raise RuntimeError("operation not permitted when stream is capturing")
        if func.name().partition(".")[0].endswith("_"):
            self.written.append((args[0], args[0].clone()))
        made = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, made))
        return made

    def restore(self):
        for tensor, before in reversed(self.written):
            tensor.copy_(before)


class RecordedGraph:
    def __init__(self):
        self.calls = []
        self.replays = 0

    def replay(self):
        self.replays += 1
        for func, args, kwargs, made in self.calls:
            again = func(*args, **kwargs)
            for tensor, new in zip(tree_leaves(made), tree_leaves(again), strict=True):
                # A view, and what was written in place, is the memory itself.
                if new.data_ptr() != tensor.data_ptr():
                    tensor.copy_(new)


class RecordedGraphs:
    """Implements `GraphMaker`. `failure`: what the driver raises."""

    def __init__(self, failure=None):
        self.failure = failure
        self.graphs = []
        self.releases = 0

    def record(self, launch):
        if self.failure is not None:
            raise self.failure
        graph = RecordedGraph()
        with Recorder(graph.calls) as recorder:
            launch()
        recorder.restore()
        self.graphs.append(graph)
        return graph

    def release(self):
        self.releases += 1
        self.graphs = []

    @property
    def replays(self):
        return sum(graph.replays for graph in self.graphs)
