"""Batch-invariant fused layers: linear layers, norms and whole layers by the kernels of `tenonry_torch_base.invariant`.
Worker process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tenonry_torch_base.attention.layer import AttentionLayer
from tenonry_torch_base.invariant import InvariantLayerParts
from tenonry_worker_torch.fuse.block import FusedAttention, FusedMLP, is_silu
from tenonry_worker_torch.fuse.linear import mark_packed, merge
from tenonry_worker_torch.fuse.norm import RMSNorm
from tenonry_worker_torch.invariance import refused
from tenonry_worker_torch_cpu.kernels.attention import attention_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

    from tenonry_torch_base import invariant
    from tenonry_torch_base.invariant import InvariantKernels, LayerAdapters
    from tenonry_worker_torch.fuse.decoder import FusedForward
    from tenonry_worker_torch.fuse.layer import FusedLayer
    from tenonry_worker_torch.fuse.linear import DenseLinear, Packing, PartedLinear

    # Continuing tokens of the current step, or None for all → adapters, None without any.
    Added = Callable[[torch.Tensor | None], LayerAdapters | None]


@dataclass(frozen=True, slots=True)
class InvariantDense:
    """A `Linear` by a kernel."""

    kernel: invariant.InvariantLinear

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernel(x.float().contiguous())

    def add(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self.kernel(x.float().contiguous(), other.float().contiguous())

    def packed(self, _packing: Packing) -> InvariantDense:
        return self

    def in_rows(self) -> torch.Tensor:
        """The weight [out, in]."""
        return self.kernel.weight()


class InvariantPacking:
    """Weight layout of the kernels. The original modules lose their weights, so that nothing is held twice."""

    def __init__(self, kernels: InvariantKernels) -> None:
        self.kernels = kernels

    def dense(self, linear: DenseLinear) -> InvariantDense:
        packed = InvariantDense(self.kernels.linear(linear.weight, linear.bias))
        mark_packed(packed, linear.sources)
        return packed

    def parted(self, linear: PartedLinear) -> InvariantDense:
        return self.dense(merge(linear.sources))

    def module(self, _linear: nn.Linear) -> None:
        return None


class KernelNorm(RMSNorm):
    """The norm before the head by a kernel."""

    __slots__ = ("kernel",)

    def __init__(self, own: RMSNorm, kernel: invariant.InvariantNorm) -> None:
        self.kernel = kernel
        self.weight = own.weight
        self.eps = own.eps
        self.is_offset = own.is_offset

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernel(x.float().contiguous())


class InvariantLayer:
    """Called like a `FusedLayer`. `attends_in`: the attention layer whose K/V it uses. `added`: adapters, or None."""

    def __init__(
        self,
        kernel: invariant.InvariantLayer,
        attends_in: AttentionLayer,
        layer_type: str,
        added: Added | None = None,
    ) -> None:
        self.kernel = kernel
        self.attends_in = attends_in
        self.layer_type = layer_type
        self._added = added

    def __call__(
        self,
        hidden: torch.Tensor,
        cos: torch.Tensor | None,
        sin: torch.Tensor | None,
        keep: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`hidden` [T, H] → f32[T, H], or f32[Q, H] of the tokens `keep` i64[Q]."""
        layer = self.attends_in
        keys = layer.step.backend.step_keys(layer, layer.step.plan)
        if keys is None or cos is None or sin is None:
            raise RuntimeError(f"{layer.spec.name} has no K/V in blocks, or no rotation")
        added = None if self._added is None else self._added(keep)
        return self.kernel(hidden.float(), cos, sin, keys, keep, added)

    def pack(self, packing: Packing) -> None:
        """Do nothing: its weights are laid out already."""


def make_invariant(
    fused: FusedForward, kernels: InvariantKernels, architecture: str, added: Sequence[Added] = ()
) -> None:
    """Use kernels for all layers of a verified fused forward pass. Raises NotInvariantError.

    `added`: adapters of each layer; empty if there may be none.
    """
    for number, layer in enumerate(fused.layers):
        reason = next(_reasons(layer), None)
        if reason is None and layer.layer_type not in fused.ropes:
            reason = "has no rotated positions"
        if reason is not None:
            raise refused(f"layer {number} of {architecture} {reason}")
    end = fused.end
    if end is None or end.softcap:
        raise refused(f"the head of {architecture} bounds its logits")
    fused.pack(InvariantPacking(kernels))
    each_added = added or [None] * len(fused.layers)
    made = [
        _made(layer, kernels, architecture, each)
        for layer, each in zip(fused.layers, each_added, strict=True)
    ]
    fused.layers = made  # type: ignore[assignment] - called like fused layers
    fused.ropes = {kind: table.in_float() for kind, table in fused.ropes.items()}
    end.norm = KernelNorm(end.norm, kernels.norm(end.norm.weight, end.norm.eps))


def _reasons(layer: FusedLayer) -> Iterator[str]:
    """Yield reasons why a layer has no such kernel."""
    own = layer.attention
    if not isinstance(own, FusedAttention):
        yield f"has a {type(own).__name__} instead of attention"
        return
    if not isinstance(layer.mlp, FusedMLP):
        yield f"has a {type(layer.mlp).__name__} as its feed-forward part"
        return
    spec = own.spec
    attends_in = own.attend
    if not isinstance(attends_in, AttentionLayer) or attends_in.rank_heads is not None:
        yield "attends with the heads of several ranks"
    if spec.chunk or spec.softcap or spec.sinks or spec.indexed or spec.spans:
        yield "attends to other keys than the last ones, or bounds its scores"
    if spec.key_size != spec.value_size or own.gate_order is not None:
        yield "has values of another size than its keys, or gates of its attention"
    norms = (layer.before_attention, layer.before_mlp)
    if any(norm is None or norm.weight is None for norm in norms):
        yield "has no norms before its halves"
    if layer.after_attention is not None or layer.after_mlp is not None:
        yield "has norms behind its halves"
    if not is_silu(layer.mlp.activation):
        yield "has another activation than SiLU"


def _made(
    layer: FusedLayer, kernels: InvariantKernels, architecture: str, added: Added | None
) -> InvariantLayer:
    """Kernel of an accepted layer, whose linear layers have theirs."""
    own: FusedAttention = layer.attention  # type: ignore[assignment] - `_reasons` looked
    mlp: FusedMLP = layer.mlp  # type: ignore[assignment]
    first: RMSNorm = layer.before_attention  # type: ignore[assignment]
    second: RMSNorm = layer.before_mlp  # type: ignore[assignment]
    parts = InvariantLayerParts(
        attention=attention_parts(own),
        norm_weight=first.weight.detach(),
        norm_eps=first.eps,
        projection=own.qkv.kernel,
        out=own.out.kernel,
        second_norm_weight=second.weight.detach(),
        second_norm_eps=second.eps,
        gate_up=mlp.gate_up.kernel,
        down=mlp.down.kernel,
    )
    made = kernels.layer(parts)
    if made is None:
        raise refused(f"{architecture} has layers of shapes for which the step kernels have none")
    return InvariantLayer(made, own.attend, layer.layer_type, added)
