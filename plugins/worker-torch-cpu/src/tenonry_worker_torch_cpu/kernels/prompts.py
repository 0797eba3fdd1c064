"""All layers of steps with prompts in one call of a bfloat16 kernel. Worker process."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from tenonry_torch_base.attention.base import AttentionBatch
from tenonry_torch_base.attention.layer import AttentionLayer, StepPlan
from tenonry_worker_torch.fuse.block import FusedAttention
from tenonry_worker_torch_cpu.attention.cpu import CpuBackend
from tenonry_worker_torch_cpu.kernels.paged import TOLERANCE
from tenonry_worker_torch_cpu.kernels.trial import Candidates

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tenonry_torch_base.paged_attention import ChunkKernel, PagedKernel, PromptKernel
    from tenonry_worker_torch.fuse.layer import FusedLayer
    from tenonry_worker_torch.fuse.rope import RopeTable

BLOCK_SIZE = 16
# Rows of a trial: a decoding one, a prompt, and one with a computed part.
NEW_TOKENS = (1, 136, 120)
HELD_TOKENS = (40, 0, 50)


class WholePrompts(NamedTuple):
    """A kernel instead of fused layers. `layers`: locations of each one's K/V."""

    layers: tuple[AttentionLayer, ...]
    kernel: PromptKernel

    def __call__(
        self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, last: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Compute the layers; None if the step has no prompts, or some of their tokens attend to later ones."""
        first = self.layers[0]
        backend = first.step.backend
        found = backend.prompt_keys(first, first.step.plan) if type(backend) is CpuBackend else None
        if found is None:
            return None
        blocks = [layer.kv_cache[0].both for layer in self.layers]
        return self.kernel(hidden, cos, sin, *found, blocks, last)


class _Attention:
    """Attention of some layers, each over its own cache, in one step."""

    def __init__(
        self,
        layers: Sequence[FusedLayer],
        attends: Mapping[str, PagedKernel],
        chunks: Mapping[str, ChunkKernel],
    ) -> None:
        owns = [layer.attention for layer in layers if isinstance(layer.attention, FusedAttention)]
        specs = [own.spec for own in owns]
        backend = CpuBackend(specs, torch.bfloat16, torch.device("cpu"))
        backend.decode_with(attends)
        backend.prefill_with(chunks)
        held = np.array(HELD_TOKENS, np.int32)
        counts = np.array(NEW_TOKENS, np.int32)
        width = -(-int((held + counts).max()) // BLOCK_SIZE)
        caches = backend.allocate(width * len(counts), BLOCK_SIZE)
        self.step = StepPlan(backend)
        self.layers = []
        for spec in specs:
            cached = AttentionLayer(spec, self.step)
            cached.kv_cache = [caches[spec.name]]
            self.layers.append(cached)
        table = np.arange(width * len(counts), dtype=np.int32).reshape(len(counts), width)
        places = [
            block * BLOCK_SIZE + np.arange(start, start + count)
            for block, start, count in zip(table[:, 0], held, counts, strict=True)
        ]
        batch = AttentionBatch(
            row=np.arange(len(counts), dtype=np.int32),
            num_tokens=counts,
            start=held,
            seq_lens=held + counts,
            block_table=table,
            slot_mapping=np.concatenate(places),
            generation=np.zeros(len(counts), np.int64),
            put=lambda _, array: torch.from_numpy(array.copy()),
        )
        self.step.plan = backend.plan(batch)
        for kept in self.kept():
            kept.copy_(torch.randn(kept.shape, generator=torch.Generator().manual_seed(0)))

    def kept(self) -> list[torch.Tensor]:
        """The blocks of the layers."""
        return [layer.kv_cache[0].both for layer in self.layers]


def prompt_candidates(
    layers: Sequence[FusedLayer],
    kernel: PromptKernel,
    attends: Mapping[str, PagedKernel],
    chunks: Mapping[str, ChunkKernel],
    rope: RopeTable,
) -> Candidates:
    """Some layers, called one after another with their kernels for parts, and by the kernel for all of them."""
    first = _Attention(layers, attends, chunks)
    second = _Attention(layers, attends, chunks)
    whole = WholePrompts(tuple(second.layers), kernel)
    singly = []
    for layer, attention in zip(layers, first.layers, strict=True):
        fused = copy.copy(layer)
        fused.attention = copy.copy(layer.attention)
        fused.attention.attend = attention  # type: ignore[attr-defined] - has parts
        singly.append(fused)
    tokens = sum(NEW_TOKENS)
    positions = torch.arange(tokens) % len(rope.cos)
    cos, sin = rope.at(positions)
    hidden = torch.randn(tokens, len(layers[0].before_mlp.weight)).bfloat16()

    def one_by_one() -> tuple[torch.Tensor, ...]:
        made = hidden
        for fused in singly:
            made = fused(made, cos, sin)
        return (made, *first.kept())

    def together() -> tuple[torch.Tensor, ...]:
        made = whole(hidden, cos, sin, None)
        if made is None:
            raise RuntimeError("the step of the trial is not for the kernel")
        return (made, *second.kept())

    return Candidates(one_by_one, together, TOLERANCE)
