"""Adapters by a kernel: which layers get one, found with random adapters at load. Worker process."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from tenonry_torch_base.buffers import put_on_host
from tenonry_torch_base.step_kernels import Refusal
from tenonry_worker_torch.adapters.batch import AdapterBatch
from tenonry_worker_torch.adapters.linear import LowRank
from tenonry_worker_torch.invariance import refused
from tenonry_worker_torch_cpu.kernels.chooser import KernelChooser
from tenonry_worker_torch_cpu.kernels.trial import Candidates, prefers_kernel

if TYPE_CHECKING:
    from tenonry_torch_base.low_rank import LowRankKernel, LowRankParts
    from tenonry_worker_torch.step_kernels import FoundKernels

ADDED = "what adapters add"
MOST_SLOTS = 8  # of a trial
MOST_RANK = 16
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 1e-2}  # relative errors taken for rounding


class LowRankKernels:
    """Assigns kernels to adapter layers if they are correct and faster; layers of one kind are tried once. Ranks need
    not agree: each adds to outputs of its own.
    """

    def __init__(self, found: FoundKernels, max_rank: int) -> None:
        self._chooser = KernelChooser(found)
        self._max_rank = max_rank

    def give(self, layer: LowRank, in_features: int) -> None:
        """A kernel to this layer, or none."""
        sizes = [part.size for part in layer.parts]
        kind = (ADDED, layer.dtype, in_features, *sizes)
        if self._chooser.count(kind, partial(self._prefers, layer, in_features)):
            layer.make_kernel = self._chooser.make

    @property
    def text(self) -> str:
        """Summary for the log."""
        chooser = self._chooser
        used, left = chooser.counts[ADDED], chooser.left[ADDED]
        return f"Step kernels {chooser.found.text} of adapters: {used} layers; with torch: {left}"

    def _prefers(self, layer: LowRank, in_features: int) -> bool:
        if layer.dtype not in TOLERANCES:
            return False
        slots = min(layer.num_slots, MOST_SLOTS)
        own, other = (
            LowRank(layer.parts, slots, layer.dtype, torch.device("cpu")) for _ in range(2)
        )
        other.make_kernel = self._chooser.make
        weights = random_weights(layer, slots, in_features, min(self._max_rank, MOST_RANK))
        for each in (own, other):
            for slot in range(slots):
                each.put(weights, slot)
        if other.kernel is None:
            return False

        def compared(count: int) -> Candidates:
            return candidates(own, other, in_features, count)

        return prefers_kernel(compared, is_timed=self._chooser.is_timed)


class AllLowRank:
    """Assigns kernels to all layers, if no token may depend on the rest of the batch."""

    def __init__(self, found: FoundKernels, max_rank: int) -> None:
        self._found = found
        self._max_rank = max_rank
        self._num_used = 0

    def give(self, layer: LowRank, in_features: int) -> None:
        """Assign a kernel. Raises NotInvariantError if there is none for such a layer, with adapters of the largest
        rank.
        """
        layer.make_kernel = self._made
        one = LowRank(layer.parts, 1, layer.dtype, torch.device("cpu"))
        one.make_kernel = self._made
        one.put(random_weights(layer, 1, in_features, self._max_rank), 0)
        self._num_used += 1

    def _made(self, parts: LowRankParts) -> LowRankKernel:
        """Make a kernel. Without one, a layer would omit its adapters."""
        made = self._found.kernels.make(parts)
        if isinstance(made, Refusal):
            raise refused(f"step kernels {self._found.text} have none for adapters: {made.reason}")
        return made

    @property
    def text(self) -> str:
        """Summary for the log."""
        return f"Step kernels {self._found.text} of adapters: {self._num_used} layers"


def random_weights(
    layer: LowRank, slots: int, in_features: int, rank: int
) -> list[dict[str, tuple[torch.Tensor, torch.Tensor]]]:
    """Random weights of each slot, for every part of the layer, with addends about as large as outputs."""
    generator = torch.Generator().manual_seed(0)
    return [
        {
            part.name: (
                torch.randn(rank, in_features, generator=generator) * in_features**-0.5,
                torch.randn(part.size, rank, generator=generator) * rank**-0.5,
            )
            for part in layer.parts
        }
        for _ in range(slots)
    ]


def candidates(own: LowRank, other: LowRank, in_features: int, count: int) -> Candidates:
    """Both over `count` random tokens, of all slots by turns."""
    slots = (np.arange(count) % own.num_slots).astype(np.int32)
    batch = AdapterBatch(slots, put_on_host, "trial")
    columns = own.parts[-1].begin + own.parts[-1].size
    x = torch.randn(count, in_features).to(own.dtype)
    outputs = [torch.zeros(count, columns, dtype=own.dtype) for _ in range(2)]

    def run(layer: LowRank, out: torch.Tensor) -> tuple[torch.Tensor]:
        out.zero_()
        layer.add(x, out, batch)
        return (out.float(),)

    return Candidates(
        lambda: run(own, outputs[0]), lambda: run(other, outputs[1]), TOLERANCES[own.dtype]
    )
