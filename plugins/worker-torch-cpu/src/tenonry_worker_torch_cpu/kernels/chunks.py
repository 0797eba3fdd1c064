"""The trial of kernels for attention of chunks of prompts, in bfloat16. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tenonry_torch_base.attention.base import AttentionBatch
from tenonry_torch_base.attention.layer import AttentionLayer, StepPlan
from tenonry_worker_torch_cpu.attention.cpu import CpuBackend
from tenonry_worker_torch_cpu.kernels.paged import TOLERANCE
from tenonry_worker_torch_cpu.kernels.trial import Candidates

if TYPE_CHECKING:
    from tenonry_torch_base.attention.base import LayerSpec
    from tenonry_torch_base.paged_attention import ChunkKernel, PagedKernel

TOKENS = 96  # of each of two chunks, so that the second has preceding tokens
BLOCK_SIZE = 16


class _Prompt:
    """One row in its own cache, whose prompt is divided into two chunks."""

    def __init__(self, spec: LayerSpec, attends: PagedKernel, kernel: ChunkKernel | None) -> None:
        self.backend = CpuBackend([spec], torch.bfloat16, torch.device("cpu"))
        self.backend.decode_with({spec.name: attends})
        if kernel is not None:
            self.backend.prefill_with({spec.name: kernel})
        blocks = 2 * TOKENS // BLOCK_SIZE
        self.step = StepPlan(self.backend)
        self.layer = AttentionLayer(spec, self.step)
        self.layer.kv_cache = [self.backend.allocate(blocks, BLOCK_SIZE)[spec.name]]
        self.table = np.arange(blocks, dtype=np.int32)[None]

    def plan(self, start: int) -> None:
        """The step of the chunk that begins at `start`."""
        batch = AttentionBatch(
            row=np.zeros(1, np.int32),
            num_tokens=np.array([TOKENS], np.int32),
            start=np.array([start], np.int32),
            seq_lens=np.array([start + TOKENS], np.int32),
            block_table=self.table,
            slot_mapping=np.arange(start, start + TOKENS),
            generation=np.zeros(1, np.int64),
            put=lambda _, array: torch.from_numpy(array.copy()),
        )
        self.step.plan = self.backend.plan(batch)

    def outputs(self, query: torch.Tensor, both: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return outputs of both chunks; `query` [2 · TOKENS, heads, size], `both`: corresponding keys and values."""
        made = []
        for start in (0, TOKENS):
            self.plan(start)
            chunk = slice(start, start + TOKENS)
            key, value = both[chunk].chunk(2, 1)
            out = self.layer(query[chunk], key, value, both[chunk])
            made.append(out)
        return tuple(made)


def chunk_candidates(spec: LayerSpec, attends: PagedKernel, kernel: ChunkKernel) -> Candidates:
    """A prompt in two chunks, with the operations of torch and with the kernel."""
    query = torch.randn(2 * TOKENS, spec.num_heads, spec.key_size).bfloat16()
    both = torch.randn(2 * TOKENS, 2 * spec.num_kv_heads, spec.key_size).bfloat16()
    own = _Prompt(spec, attends, None)
    other = _Prompt(spec, attends, kernel)
    return Candidates(
        lambda: own.outputs(query, both), lambda: other.outputs(query, both), TOLERANCE
    )
