"""Kernels of adapters, selected with random adapters at load. Worker process."""

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
    from collections.abc import Callable

    from tenonry_torch_base.low_rank import LowRankKernel, LowRankParts
    from tenonry_worker_torch.step_kernels import FoundKernels

ADDED = "what adapters add"
MOST_SLOTS = 8  # of a trial
MOST_RANK = 16
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 1e-2}  # relative errors taken for rounding


class LowRankKernels:
    """Assigns kernels to adapter layers if they are correct and faster; layers of one kind are tried once. Ranks need
    not agree: each adds to its own outputs.

    `is_required`: all layers must have one, since no token may depend on the rest of the batch; nothing is tried.
    """

    def __init__(self, found: FoundKernels, max_rank: int, *, is_required: bool = False) -> None:
        self._chooser = KernelChooser(found)
        self._max_rank = max_rank
        self._is_required = is_required

    def give(self, layer: LowRank, in_features: int) -> None:
        """Assign a kernel to a layer, or none.

        Raises NotInvariantError if one is required and none exists for adapters of the largest rank.
        """
        sizes = [part.size for part in layer.parts]
        kind = (ADDED, layer.dtype, in_features, *sizes)
        if self._is_required:
            layer.make_kernel = self._required
            one = _copy(layer, 1, self._required)
            one.put(random_weights(layer, 1, in_features, self._max_rank), 0)
            self._chooser.counts[ADDED] += 1
        elif self._chooser.count(kind, partial(self._prefers, layer, in_features)):
            layer.make_kernel = self._chooser.make

    @property
    def text(self) -> str:
        """Summary for the log."""
        chooser = self._chooser
        text = f"Step kernels {chooser.found.text} of adapters: {chooser.counts[ADDED]} layers"
        return text if self._is_required else f"{text}; with torch: {chooser.left[ADDED]}"

    def _required(self, parts: LowRankParts) -> LowRankKernel:
        """Make a kernel. Without one, a layer would omit its adapters."""
        found = self._chooser.found
        made = found.kernels.make(parts)
        if isinstance(made, Refusal):
            raise refused(f"step kernels {found.text} have none for adapters: {made.reason}")
        return made

    def _prefers(self, layer: LowRank, in_features: int) -> bool:
        if layer.dtype not in TOLERANCES:
            return False
        slots = min(layer.num_slots, MOST_SLOTS)
        own = _copy(layer, slots, None)
        other = _copy(layer, slots, self._chooser.make)
        weights = random_weights(layer, slots, in_features, min(self._max_rank, MOST_RANK))
        for each in (own, other):
            for slot in range(slots):
                each.put(weights, slot)
        if other.kernel is None:
            return False

        def compared(count: int) -> Candidates:
            return candidates(own, other, in_features, count)

        return prefers_kernel(compared, is_timed=self._chooser.is_timed)


def _copy(
    layer: LowRank, slots: int, make_kernel: Callable[[LowRankParts], LowRankKernel | None] | None
) -> LowRank:
    """A layer of the same parts, without adapters."""
    made = LowRank(layer.parts, slots, layer.dtype, torch.device("cpu"))
    made.make_kernel = make_kernel
    return made


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
