"""Step kernels for a fused model in bfloat16 with packed weights. Worker process.

Linear layers have one if they are faster with it, up to a number of rows; the kernel reads the weights in oneDNN's
layout. Attention of rows that decode has one for all layers or for none, since with it K/V are read from their blocks,
and there are no slabs. With it, whole layers may have one, and so may attention of prompt chunks. Operations between
the products may have one for any number of rows.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tenonry_torch_base.kernel_parts import ChunkAttentionParts, LinearParts, PagedAttentionParts
from tenonry_worker_torch.fuse.block import FusedAttention, FusedMLP
from tenonry_worker_torch.fuse.decoder import LeanForward, LeanHead
from tenonry_worker_torch.fuse.layer import KERNEL_TOKENS
from tenonry_worker_torch_cpu.attention.cpu import CpuBackend
from tenonry_worker_torch_cpu.kernels import linear, paged
from tenonry_worker_torch_cpu.kernels.between import BetweenKernels
from tenonry_worker_torch_cpu.kernels.chooser import ANY_ROWS
from tenonry_worker_torch_cpu.kernels.chunks import chunk_candidates
from tenonry_worker_torch_cpu.kernels.stacks import StackKernels
from tenonry_worker_torch_cpu.packing.onednn import PackedLinear
from tenonry_worker_torch_cpu.packing.widened import BlockedLinear

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tenonry_torch_base.attention.base import AttentionBackend, LayerSpec
    from tenonry_torch_base.attention.layer import AttentionLayer
    from tenonry_torch_base.paged_attention import ChunkKernel, PagedKernel
    from tenonry_torch_base.step_kernels import LinearKernel
    from tenonry_worker_torch.changes import Changes
    from tenonry_worker_torch.forward import Forward
    from tenonry_worker_torch.fuse.layer import LeanLayer
    from tenonry_worker_torch_cpu.kernels.chooser import KernelChooser

LAYER = "layer"
ATTENTION = "attention"
LINEAR = "linear"
PREFILL = "prefill"
SAMPLE = 4096  # outputs of a trial


class Bfloat16Kernels:
    """Assigns the chosen kernels."""

    def __init__(self, chooser: KernelChooser, changes: Changes) -> None:
        self._chooser = chooser
        self._changes = changes

    def give(
        self, forward: Forward, backend: AttentionBackend, *, reads_cache: bool = True
    ) -> None:
        """Assign kernels to all parts of a model that have one and are faster with it.

        `reads_cache`: they can read what will be in the KV cache; otherwise attention has none, and no whole layer.
        """
        if not isinstance(forward, LeanForward):
            return
        stacks = StackKernels(self._chooser, self._changes)
        for layer in forward.layers:
            if isinstance(layer.attention, FusedAttention):
                self._give_linear(layer.attention, "qkv")
                self._give_linear(layer.attention, "out")
            if isinstance(layer.mlp, FusedMLP):
                self._give_linear(layer.mlp, "gate_up")
                self._give_linear(layer.mlp, "down")
        kernels = self._attention_kernels(forward, backend) if reads_cache else {}
        if kernels:
            attend_with(backend, kernels, {})
            self._changes.on_undo(partial(attend_with, backend, {}, {}))
            chunks = self._chunk_kernels(forward, kernels)
            attend_with(backend, kernels, chunks)
            for layer in forward.layers:
                self._give_layer(forward, layer, kernels)
            if type(backend) is CpuBackend:
                stacks.give(forward, kernels, chunks)
        if isinstance(forward.end, LeanHead):
            self._give_linear(
                forward.end, "head"
            )  # the largest: what is left of the time is enough for few rows
        stacks.give_rounds(forward, kernels)
        BetweenKernels(self._chooser, self._changes).give(
            forward
        )  # for prompts: whole layers have theirs by now

    def _give_linear(self, owner: Any, place: str) -> None:
        own = getattr(owner, place)
        if not isinstance(own, PackedLinear | BlockedLinear):
            return
        weight = own.blocked()
        made = None if weight is None else self._chooser.make(LinearParts(weight))
        if made is None:
            self._chooser.left[LINEAR] += 1
            return
        outputs, inputs = own.shape
        shape = f"{outputs}×{inputs}"
        compared = partial(linear.candidates, *self._sample(own, made))
        # Torch would widen blocks piece by piece, and so is many times slower for few rows, and slower for many.
        any_rows = ANY_ROWS if isinstance(own, BlockedLinear) else 0
        most = self._chooser.most_rows((LINEAR, shape, own.bias is None), compared, any_rows)
        if most == KERNEL_TOKENS:
            most = any_rows or most
        self._chooser.rows[shape] = most
        if most:
            self._changes.set(owner, place, linear.KernelLinear(own, made, most))

    def _sample(
        self, own: PackedLinear | BlockedLinear, made: LinearKernel
    ) -> tuple[PackedLinear | BlockedLinear, LinearKernel]:
        """Compared outputs: some of them, if weights are available in parts."""
        if isinstance(own, PackedLinear):
            return own, made
        some = own.sample(SAMPLE)
        return some, self._chooser.make(LinearParts(some.blocked())) or made

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
            made = self._chooser.make(PagedAttentionParts(paged.paged_parts(own.spec)))
            if made is None:
                return {}
            compared = partial(paged.attention_candidates, own, made, rope)
            if not self._chooser.most_rows((ATTENTION, *_shape(own.spec)), compared):
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
            made = self._chooser.make(ChunkAttentionParts(paged.paged_parts(spec)))
            if made is None:
                self._chooser.left[PREFILL] += 1
                continue
            compared = partial(chunk_candidates, spec, attends[spec.name], made)
            if self._chooser.is_better((PREFILL, *_shape(spec)), compared):
                kernels[spec.name] = made
        return kernels

    def _give_layer(
        self, forward: LeanForward, layer: LeanLayer, kernels: dict[str, PagedKernel]
    ) -> None:
        rope = forward.ropes.get(layer.layer_type)
        parts = paged.layer_parts(layer, rope)
        made = None if parts is None else self._chooser.make(parts)
        if made is None or parts is None or rope is None:
            self._chooser.left[LAYER] += 1
            return
        attends_in: AttentionLayer = layer.attention.attend  # type: ignore[attr-defined] - has parts
        attends = kernels[attends_in.spec.name]
        compared = partial(paged.layer_candidates, layer, made, attends, rope)
        shape = (parts.attention.window, parts.attention.heads, parts.gate_up.outputs)
        most = self._chooser.most_rows((LAYER, *shape, layer.layer_type), compared)
        self._chooser.rows[LAYER] = most
        if most:
            self._changes.set(layer, "kernel", paged.WholeLayer(attends_in, made, most))


def attend_with(
    backend: AttentionBackend, decode: Mapping[str, PagedKernel], prefill: Mapping[str, ChunkKernel]
) -> None:
    """Use attention kernels, by layer name; none: torch attends."""
    parts = paged.cpu_backends(backend)
    for part in parts:
        part.decode_with(decode)
        part.prefill_with(prefill)
    backend.cache_sizes = parts[0].cache_sizes


def _shape(spec: LayerSpec) -> tuple[object, ...]:
    """Key of the differences between attention kernels."""
    parts = paged.paged_parts(spec)
    return (parts.heads, parts.kv_heads, parts.size, parts.scaling, parts.window)
