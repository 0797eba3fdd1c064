"""Model pass that computes a decoding step's layers with kernels between their matrix products. Worker process.

A layer of the Llama kind then takes nine launches, and one more where the keys of a row are split: norm, projection,
rotation with K/V to their blocks, attention, output, norm, projection, gate, output. Norms and gates round their rows
where the projection is in fp8; rows of attention are rounded by one launch more, since a program has one head of a row.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tenonry_attention_triton.backend import TritonBackend, has_kernels, has_triton
from tenonry_attention_triton.matrices import ScaledLinear
from tenonry_worker_torch.fuse.block import FusedAttention, FusedMLP, is_silu
from tenonry_worker_torch.fuse.decoder import FusedForward
from tenonry_worker_torch.passes.model_pass import ModelPass

if TYPE_CHECKING:
    import torch

    from tenonry_attention_triton.parts import HeadWeights
    from tenonry_torch_base.attention.layer import AttentionLayer
    from tenonry_worker_torch.changes import Changes
    from tenonry_worker_torch.fuse.layer import FusedLayer
    from tenonry_worker_torch.fuse.linear import Linear
    from tenonry_worker_torch.fuse.norm import RMSNorm
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.passes.model_pass import PassFacts

logger = logging.getLogger("tenonry.worker")


class TritonLayers(ModelPass):
    """See the module; steps with prompts whose last layer computes sampling tokens alone have kernels for gates."""

    name = "triton-layers"
    changes_module = False

    @classmethod
    def preload(cls) -> None:
        if has_triton():
            import tenonry_attention_triton.parts  # noqa: F401

    def why_not(self, model: LoadedModel, facts: PassFacts) -> str | None:
        reason = refusal(model)
        if reason is not None:
            logger.info("Using torch instead of Triton kernels between matrix products: %s", reason)
        return reason

    def apply(self, model: LoadedModel, facts: PassFacts, changes: Changes) -> str:
        from tenonry_attention_triton import parts

        fused = model.forward
        assert isinstance(fused, FusedForward)  # noqa: S101 - `why_not` looked
        changes.set(fused, "stack", TritonStack(fused, model.backend))  # type: ignore[arg-type] - `why_not` looked
        for layer in fused.layers:
            changes.set(layer.mlp, "gate_kernel", parts.gate)
        return f"{len(fused.layers)} layers"


def refusal(model: LoadedModel) -> str | None:
    """Reason why the kernels do not compute a model; None if they do."""
    fused = model.forward
    if not isinstance(model.backend, TritonBackend):
        return (
            f"they write K/V of attention backend 'triton', and this one is '{model.backend.name}'"
        )
    if not isinstance(fused, FusedForward) or model.mixers:
        return "the model runs its own code, or layers with state"
    if len(fused.ropes) != 1:
        return "its layers rotate differently"
    for number, layer in enumerate(fused.layers):
        if not is_plain(layer):
            return f"layer {number} is of another kind than Llama's"
    return None


def is_plain(layer: FusedLayer) -> bool:
    """Return True for a layer of the Llama kind: norms before both halves, and a gated feed-forward part with SiLU."""
    attention, mlp = layer.attention, layer.mlp
    if not isinstance(attention, FusedAttention) or type(mlp) is not FusedMLP:
        return False
    if attention.gate_order is not None or not has_kernels(attention.spec):
        return False
    norms = (layer.before_attention, layer.before_mlp)
    if any(norm is None or norm.weight is None for norm in norms):
        return False
    return layer.after_attention is None and layer.after_mlp is None and is_silu(mlp.activation)


class TritonStack:
    """Implements `tenonry_worker_torch.fuse.decoder.StackOfLayers`."""

    def __init__(self, fused: FusedForward, backend: TritonBackend) -> None:
        self._step = fused.step
        self._layers = [StackedLayer(layer, backend) for layer in fused.layers]

    def __call__(self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        from tenonry_attention_triton import parts

        plan = self._step.plan
        turn = (cos, sin)
        residual = hidden.clone()
        out = None
        for layer in self._layers:
            qkv = projected(layer.attention.qkv, out, residual, layer.first)
            out = layer.attention.out(layer.heads(qkv, turn, plan))
            both = projected(layer.mlp.gate_up, out, residual, layer.second)
            if isinstance(layer.mlp.down, ScaledLinear):
                out = layer.mlp.down.of_rounded(parts.gate_rounded(both))
            else:
                out = layer.mlp.down(parts.gate(both))
        return residual if out is None else residual.add_(out)


class StackedLayer:
    """A layer's parts, as they are when a step computes them: adapters and packed weights included."""

    def __init__(self, layer: FusedLayer, backend: TritonBackend) -> None:
        self.attention: FusedAttention = layer.attention  # type: ignore[assignment] - `is_plain` looked
        self.mlp: FusedMLP = layer.mlp  # type: ignore[assignment]
        self.first: RMSNorm = layer.before_attention  # type: ignore[assignment]
        self.second: RMSNorm = layer.before_mlp  # type: ignore[assignment]
        self._backend = backend
        self._attend: AttentionLayer = self.attention.attend  # type: ignore[assignment]
        self._norm = head_weights(self.attention)

    def heads(
        self, qkv: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor], plan: object
    ) -> torch.Tensor:
        """`qkv` [T, columns] → attention output [T, heads · size], not yet projected."""
        from tenonry_attention_triton import parts

        layer = self._attend
        shape = self._backend.shape_of(layer.spec)
        query = parts.turn_and_write(shape, layer.kv_cache[0], qkv, turn, self._norm, plan)  # type: ignore[arg-type]
        return self._backend.attend(layer, query, plan).flatten(1)  # type: ignore[arg-type]


def head_weights(attention: FusedAttention) -> HeadWeights | None:
    """Norm of a layer's queries and keys."""
    from tenonry_attention_triton.parts import HeadWeights

    norm = attention.head_norm
    return None if norm is None else HeadWeights(norm.weight, norm.norm.eps)


def projected(
    linear: Linear, x: torch.Tensor | None, residual: torch.Tensor, norm: RMSNorm
) -> torch.Tensor:
    """`linear` of the norm of `residual` after `x` was added to it."""
    from tenonry_attention_triton import parts

    assert norm.weight is not None  # noqa: S101 - `is_plain` looked
    if isinstance(linear, ScaledLinear):
        return linear.of_rounded(parts.add_norm_rounded(x, residual, norm.weight, norm.eps))
    return linear(parts.add_norm(x, residual, norm.weight, norm.eps))
