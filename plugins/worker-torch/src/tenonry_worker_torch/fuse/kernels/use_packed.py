"""Kernels for a fused model in bfloat16 with packed weights: assignment to parts, and removal of all of them. Worker
process.

Linear layers have one if they are faster with it, up to a number of rows; the kernel reads the weights in oneDNN's
layout. Attention of rows that decode has one for all layers or for none, since with it K/V are read from their blocks,
and there are no slabs. With it, whole layers may have one, and so may attention of prompt chunks. Operations between
the products may have one for any number of rows.
"""

from __future__ import annotations

import sys
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from tenonry_worker_torch.attention.cpu import CpuBackend
from tenonry_worker_torch.fuse.block import FusedAttention, FusedMLP
from tenonry_worker_torch.fuse.decoder import LeanForward, LeanHead
from tenonry_worker_torch.fuse.kernels import linear, paged
from tenonry_worker_torch.fuse.kernels.between import Between
from tenonry_worker_torch.fuse.kernels.chunks import chunk_candidates
from tenonry_worker_torch.fuse.kernels.rows import Budget
from tenonry_worker_torch.fuse.kernels.stacks import Stacks
from tenonry_worker_torch.fuse.kernels.trial import tried
from tenonry_worker_torch.fuse.layer import KERNEL_TOKENS
from tenonry_worker_torch.fuse.linear import PackedLinear
from tenonry_worker_torch.fuse.widened import BlockedLinear

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenonry_torch_base.paged_attention import ChunkKernel, PagedKernel
    from tenonry_torch_base.step_kernels import LinearKernel
    from tenonry_worker_torch.attention.base import AttentionBackend, LayerSpec
    from tenonry_worker_torch.attention.layer import AttentionLayer
    from tenonry_worker_torch.forward import Forward
    from tenonry_worker_torch.fuse.kernels.found import FoundKernels
    from tenonry_worker_torch.fuse.kernels.trial import Candidates
    from tenonry_worker_torch.fuse.layer import LeanLayer

LAYER = "layer"
ATTENTION = "attention"
LINEAR = "linear"
PREFILL = "prefill"
SAMPLE = 4096  # outputs of a trial
ANY_ROWS = sys.maxsize


class UsedPacked:
    """Kernels of a model. Parts of one kind are tried once."""

    def __init__(self, found: FoundKernels) -> None:
        self.found = found
        self.counts: Counter[str] = Counter()
        self.left: Counter[str] = Counter()  # parts that stay with torch
        self.chosen: dict[str, int] = {}  # rows, by shape; 0 for those that stay with torch
        self._budget = Budget()
        self._verdicts: dict[tuple[object, ...], int] = {}
        self._places: list[tuple[Any, str, PackedLinear | BlockedLinear]] = []
        self._between = Between(found.kernels, self._is_better)
        self._stacks = Stacks(found.kernels, self._is_better)
        self._layers: list[LeanLayer] = []
        self._backends: list[CpuBackend] = []
        self._backend: AttentionBackend | None = None

    def give(
        self, forward: Forward, backend: AttentionBackend, *, reads_cache: bool = True
    ) -> None:
        """Assign kernels to all parts of a model that have one and are faster with it.

        `reads_cache`: they can read what will be in the KV cache; otherwise attention has none, and no whole layer.
        """
        if not isinstance(forward, LeanForward):
            return
        for layer in forward.layers:
            if isinstance(layer.attention, FusedAttention):
                self._give_linear(layer.attention, "qkv")
                self._give_linear(layer.attention, "out")
            if isinstance(layer.mlp, FusedMLP):
                self._give_linear(layer.mlp, "gate_up")
                self._give_linear(layer.mlp, "down")
        kernels = self._attention_kernels(forward, backend) if reads_cache else {}
        if kernels:
            self._backend = backend
            self._backends = paged.cpu_backends(backend)
            self._decode_with(kernels)
            chunks = self._chunk_kernels(forward, kernels)
            self._prefill_with(chunks)
            for layer in forward.layers:
                self._give_layer(forward, layer, kernels)
            if type(backend) is CpuBackend:
                self._stacks.give(forward, kernels, chunks)
        if isinstance(forward.end, LeanHead):
            self._give_linear(
                forward.end, "head"
            )  # the largest: what is left of the time is enough for few rows
        self._stacks.give_rounds(forward, kernels)
        self._between.give(forward)  # for prompts: whole layers have theirs by now

    def take_back(self) -> None:
        """Restore the operations of torch everywhere."""
        for owner, place, own in self._places:
            setattr(owner, place, own)
        for layer in self._layers:
            layer.kernel = None
        self._stacks.take_back()
        self._between.take_back()
        self._decode_with({})
        self._prefill_with({})
        self.counts.clear()
        self.chosen.clear()

    @property
    def text(self) -> str:
        """Summary for the log."""
        used = ", ".join(f"{count} × {part}" for part, count in self.counts.items())
        left = ", ".join(f"{count} × {part}" for part, count in self.left.items())
        text = f"Step kernels {self.found.text}: {used or 'none'}"
        if self.chosen:
            rows = ", ".join(
                f"{shape} any" if most == ANY_ROWS else f"{shape} to {most}"
                for shape, most in self.chosen.items()
            )
            text = f"{text}; rows, more with torch: {rows}"
        return f"{text}; with torch: {left}" if left else text

    def _decode_with(self, kernels: dict[str, PagedKernel]) -> None:
        for part in self._backends:
            part.decode_with(kernels)
        if self._backend is not None:
            self._backend.cache_sizes = self._backends[0].cache_sizes

    def _prefill_with(self, kernels: dict[str, ChunkKernel]) -> None:
        for part in self._backends:
            part.prefill_with(kernels)

    def _give_linear(self, owner: Any, place: str) -> None:
        own = getattr(owner, place)
        if not isinstance(own, PackedLinear | BlockedLinear):
            return
        weight = own.blocked()
        made = None if weight is None else self.found.kernels.linear(weight)
        if made is None:
            self.left[LINEAR] += 1
            return
        outputs, inputs = own.shape
        shape = f"{outputs}×{inputs}"
        compared = partial(linear.candidates, *self._sample(own, made))
        # Torch would widen blocks piece by piece, and so is many times slower for few rows, and slower for many.
        any_rows = ANY_ROWS if isinstance(own, BlockedLinear) else 0
        most = self._most((LINEAR, shape, own.bias is None), compared, any_rows)
        if most == KERNEL_TOKENS:
            most = any_rows or most
        self.chosen[shape] = most
        if most:
            setattr(owner, place, linear.KernelLinear(own, made, most))
            self._places.append((owner, place, own))

    def _sample(
        self, own: PackedLinear | BlockedLinear, made: LinearKernel
    ) -> tuple[PackedLinear | BlockedLinear, LinearKernel]:
        """Compared outputs: some of them, if weights are available in parts."""
        if isinstance(own, PackedLinear):
            return own, made
        some = own.sample(SAMPLE)
        return some, self.found.kernels.linear(some.blocked()) or made

    def _attention_kernels(
        self, forward: LeanForward, backend: AttentionBackend
    ) -> dict[str, PagedKernel]:
        """Kernels by the names of all layers with attention; empty if one of them has none."""
        if not paged.cpu_backends(backend):
            return {}
        kernels: dict[str, PagedKernel] = {}
        for layer in forward.layers:
            own = layer.attention
            rope = forward.ropes.get(layer.layer_type)
            if not isinstance(own, FusedAttention):
                continue
            attends: Any = own.attend
            if rope is None or not paged.is_plain(attends):
                return {}
            made = self.found.kernels.paged_attention(paged.paged_parts(own.spec))
            if made is None:
                return {}
            compared = partial(paged.attention_candidates, own, made, rope)
            if not self._most((ATTENTION, *_shape(own.spec)), compared):
                return {}
            kernels[own.spec.name] = made
        return kernels if len(kernels) == len(backend.layers) else {}

    def _chunk_kernels(
        self, forward: LeanForward, attends: dict[str, PagedKernel]
    ) -> dict[str, ChunkKernel]:
        """Chunk kernels by the names of the layers that have one."""
        kernels: dict[str, ChunkKernel] = {}
        for layer in forward.layers:
            own = layer.attention
            if not isinstance(own, FusedAttention):
                continue
            spec = own.spec
            made = self.found.kernels.chunk_attention(paged.paged_parts(spec))
            if made is None:
                self.left[PREFILL] += 1
                continue
            compared = partial(chunk_candidates, spec, attends[spec.name], made)
            if self._is_better((PREFILL, *_shape(spec)), compared):
                kernels[spec.name] = made
        return kernels

    def _give_layer(
        self, forward: LeanForward, layer: LeanLayer, kernels: dict[str, PagedKernel]
    ) -> None:
        rope = forward.ropes.get(layer.layer_type)
        parts = paged.layer_parts(layer, rope)
        made = None if parts is None else self.found.kernels.layer(parts)
        if made is None or parts is None or rope is None:
            self.left[LAYER] += 1
            return
        attends_in: AttentionLayer = layer.attention.attend  # type: ignore[attr-defined] - has parts
        attends = kernels[attends_in.spec.name]
        compared = partial(paged.layer_candidates, layer, made, attends, rope)
        shape = (parts.attention.window, parts.attention.heads, parts.gate_up.outputs)
        most = self._most((LAYER, *shape, layer.layer_type), compared)
        self.chosen[LAYER] = most
        if most:
            layer.kernel = paged.WholeLayer(attends_in, made, most)
            self._layers.append(layer)

    def _most(
        self, kind: tuple[object, ...], compared: Callable[[int], Candidates], if_untried: int = 0
    ) -> int:
        """Up to how many rows the kernel is used."""
        most = partial(
            self._budget.most_rows, compared, is_timed=self._is_timed, if_untried=if_untried
        )
        return self._verdict(kind, most)

    def _is_better(self, kind: tuple[object, ...], compared: Callable[[], Candidates]) -> bool:
        """Return True if the kernel is used, for any number of rows."""
        better = partial(self._budget.is_better, compared, is_timed=self._is_timed)
        return bool(self._verdict(kind, better))

    @property
    def _is_timed(self) -> bool:
        return not self.found.is_asked_for

    def _verdict(self, kind: tuple[object, ...], trial: Callable[[], int]) -> int:
        """Result of the trial of the first part of a kind; 0 or False: the kernel is not used."""
        part = str(kind[0])
        if kind not in self._verdicts:
            self._verdicts[kind] = int(tried(self.found.text, part, trial))
        counts = self.counts if self._verdicts[kind] else self.left
        counts[part] += 1
        return self._verdicts[kind]


def _shape(spec: LayerSpec) -> tuple[object, ...]:
    """Key of the differences between attention kernels."""
    parts = paged.paged_parts(spec)
    return (parts.heads, parts.kv_heads, parts.size, parts.scaling, parts.window)
