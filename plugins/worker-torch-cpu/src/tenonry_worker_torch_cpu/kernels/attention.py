"""Attention of decode-only steps, with a kernel between the projections. Worker process."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np
import torch

from tenonry_torch_base.attention.base import AttentionBatch
from tenonry_torch_base.attention.layer import AttentionLayer, StepPlan
from tenonry_torch_base.step_kernels import AttentionParts
from tenonry_worker_torch_cpu.attention.cpu import CpuBackend
from tenonry_worker_torch_cpu.kernels.trial import ROWS, Candidates

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tenonry_torch_base.attention.base import LayerSpec
    from tenonry_torch_base.paged_attention import PagedKernel
    from tenonry_torch_base.step_kernels import AttentionKernel, HeldKeys
    from tenonry_worker_torch.fuse.block import FusedAttention
    from tenonry_worker_torch.fuse.linear import Packing
    from tenonry_worker_torch.fuse.rope import RopeTable

MAX_ELEMENTS = 1 << 21  # of keys, once per query head: torch reads more of them on all cores
BLOCK_SIZE = 16
SHORTEST = 3  # rows of trials, in tokens
LONGEST = 48
STORE = 65_521  # random numbers that fill caches again and again: a prime number, so that no two blocks are alike
CACHE_SIZE = 6  # relative to its rows in trials: slabs take half of it at most, and are longer than their rows


class KernelAttention:
    """Called like `FusedAttention`. `own`: our operations, for all other steps; `layer`: their attention layer."""

    def __init__(self, own: FusedAttention, layer: AttentionLayer, kernel: AttentionKernel) -> None:
        self.own = own
        self.layer = layer
        self.kernel = kernel
        self.out = own.out

    def heads(
        self,
        x: torch.Tensor,
        cos: torch.Tensor | None,
        sin: torch.Tensor | None,
        keep: torch.Tensor | None,
    ) -> torch.Tensor:
        """As `FusedAttention.heads`."""
        if keep is None and cos is not None and sin is not None:
            held = held_for(self.layer, len(x))
            if held is not None:
                projected = self.own.qkv(x)
                return self.kernel(projected, cos, sin, held)
        return self.own.heads(x, cos, sin, keep)

    def pack(self, packing: Packing) -> None:
        """As `FusedAttention.pack`."""
        self.own.pack(packing)
        self.out = self.own.out


def held_for(layer: AttentionLayer, count: int) -> HeldKeys | None:
    """Location of the keys of the step's `count` rows, if a kernel may attend to that many."""
    step = layer.step
    held = step.backend.held_keys(layer, step.plan)
    spec = layer.spec
    if held is None or count * held.longest * spec.num_heads * spec.key_size > MAX_ELEMENTS:
        return None
    return held


def attention_layer(own: FusedAttention, rope: RopeTable) -> AttentionLayer | None:
    """The layer if a kernel could attend in it: a small layer that sees all keys of its rows, held by its backend; or
    None.

    A model whose rows cannot enter and then gain a token is left unchanged.
    """
    layer = own.attend
    if not isinstance(layer, AttentionLayer) or layer.rank_heads is not None:
        return None
    if len(rope.cos) < SHORTEST:
        return None
    spec = layer.spec
    if spec.window or spec.chunk or spec.softcap or spec.sinks or spec.indexed:
        return None
    if max(ROWS) * LONGEST * spec.num_heads * spec.key_size > MAX_ELEMENTS:
        return None
    backend = layer.step.backend
    return layer if backend.holds_rows and backend.dtype == torch.float32 else None


def attention_parts(own: FusedAttention) -> AttentionParts:
    """Attention parts of a layer found by `attention_layer`."""
    spec = own.spec
    norm = own.head_norm
    return AttentionParts(
        heads=spec.num_heads,
        kv_heads=spec.num_kv_heads,
        size=spec.key_size,
        is_gated=own.gate_order is not None,
        norm_weight=None if norm is None else norm.weight.detach().float(),
        norm_eps=0.0 if norm is None else norm.norm.eps,
        scaling=spec.scaling,
        window=spec.window,
    )


class TrialStep:
    """A layer of the same kind with its own cache, in which `count` fixed rows gain tokens."""

    def __init__(
        self,
        own: FusedAttention,
        spec: LayerSpec,
        count: int,
        longest: int,
        dtype: torch.dtype = torch.float32,
        kernels: Mapping[str, PagedKernel] | None = None,
    ) -> None:
        """`longest`: maximum tokens per row, from `SHORTEST` to `LONGEST`. `kernels`: decoding kernels."""
        drawn = torch.Generator().manual_seed(count)
        blocks = -(-LONGEST // BLOCK_SIZE)
        backend = CpuBackend([spec], dtype, torch.device("cpu"))
        backend.decode_with(kernels or {})
        times = 1 if kernels else CACHE_SIZE
        self.cache = backend.allocate(times * blocks * count, BLOCK_SIZE)[spec.name]
        self.step = StepPlan(backend)
        self.layer = AttentionLayer(spec, self.step)
        self.layer.kv_cache = [self.cache]
        self.own = copy.copy(own)
        self.own.attend = self.layer
        self.table = np.arange(blocks * count, dtype=np.int32).reshape(count, -1)
        self.start = torch.randint(1, longest - 1, (count,), generator=drawn).numpy()
        held = self.kept()
        store = torch.randn(STORE, generator=drawn).to(dtype)
        held.view(-1).copy_(store.repeat(-(-held.numel() // STORE))[: held.numel()])

    def kept(self) -> torch.Tensor:
        """The blocks of the rows."""
        both = self.cache.both
        if both is None:
            raise RuntimeError(f"{self.layer.spec.name} has no keys and values of one size")
        return both[: self.table.size]

    def plan(self, more: int) -> torch.Tensor:
        """Plan the step in which each row computes its token `more`; returns the positions."""
        rows = np.arange(len(self.table), dtype=np.int32)
        start = (self.start + more).astype(np.int32)
        block = self.table[rows, start // BLOCK_SIZE].astype(np.int64)
        batch = AttentionBatch(
            row=rows,
            num_tokens=np.ones_like(rows),
            start=start,
            seq_lens=start + np.int32(1),
            block_table=self.table,
            slot_mapping=block * BLOCK_SIZE + start % BLOCK_SIZE,
            generation=np.zeros(len(rows), np.int64),
            put=lambda _, array: torch.from_numpy(array.copy()),
        )
        self.step.plan = self.step.backend.plan(batch)
        return torch.from_numpy(start.astype(np.int64))

    def after_entering(self, rope: RopeTable) -> tuple[torch.Tensor, torch.Tensor]:
        """Enter all rows with a token, and plan their next one; returns its rotation."""
        cos, sin = rope.at(self.plan(0))
        columns = attention_parts(self.own).columns
        entering = torch.ones(len(self.table), columns, dtype=self.step.backend.dtype)
        self.own.between(entering, cos, sin, None)
        return rope.at(self.plan(1))

    def held(self) -> HeldKeys:
        """Location of keys in a step after the first one."""
        found = self.step.backend.held_keys(self.layer, self.step.plan)
        if found is None:
            raise RuntimeError(f"rows of {self.layer.spec.name} are not held for kernels")
        return found


def trial_steps(own: FusedAttention, rope: RopeTable, count: int) -> tuple[TrialStep, TrialStep]:
    """Two that are alike, of no more tokens than can be rotated."""
    longest = min(LONGEST, len(rope.cos))
    first = TrialStep(own, own.spec, count, longest)
    second = TrialStep(own, own.spec, count, longest)
    return first, second


def candidates(
    own: FusedAttention, kernel: AttentionKernel, rope: RopeTable, count: int
) -> Candidates:
    """Both over `count` random tokens, the second ones after their rows entered."""
    first, second = trial_steps(own, rope, count)
    first.after_entering(rope)
    cos, sin = second.after_entering(rope)
    projected = torch.randn(count, attention_parts(own).columns)
    held = second.held()
    kept = first.held()

    def with_torch() -> tuple[torch.Tensor, ...]:
        made = first.own.between(projected.clone(), cos, sin, None)
        return made, kept.slab, first.kept()

    def with_kernel() -> tuple[torch.Tensor, ...]:
        made = kernel(projected.clone(), cos, sin, held)
        return made, held.slab, second.kept()

    return Candidates(with_torch, with_kernel)
