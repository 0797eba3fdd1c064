"""The whole fused forward pass: embedding, fused layers, norm, head, or a pipeline stage's part of them. Worker
process.

The last layer continues only with the sampling tokens: of a long prompt, that is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from tenonry_torch_base.parallel.layers import GatherLinear
from tenonry_torch_base.parallel.stage import stage_of
from tenonry_torch_base.text_part import text_stack
from tenonry_worker_torch.fuse.block import FusedAttention, is_linear
from tenonry_worker_torch.fuse.embedding import embeds_plainly
from tenonry_worker_torch.fuse.layer import FusedLayer, fused_layer, fused_mixer_layer
from tenonry_worker_torch.fuse.linear import (
    DenseLinear,
    GatheredLinear,
    Linear,
    PartedLinear,
    detached_bias,
)
from tenonry_worker_torch.fuse.norm import RMSNorm, rms_norm_of
from tenonry_worker_torch.fuse.rope import RopeTable, rope_table
from tenonry_worker_torch.fuse.stack import Block, blocks_of
from tenonry_worker_torch.loading.quantised import STORED_WEIGHT
from tenonry_worker_torch.loading.stored import StoredLinear

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

    from tenonry_torch_base.attention.layer import AttentionLayer, StepPlan
    from tenonry_torch_base.paged_attention import PagedKeys
    from tenonry_torch_base.round_kernel import RoundEnds, RoundTokens
    from tenonry_worker_torch.forward import ForwardPlans
    from tenonry_worker_torch.fuse.linear import Packing

NOT_ROTATED = (None, None)  # of layers without attention


class StackOfLayers(Protocol):
    """All fused layers in one call, if each has attention and all share the rotation."""

    def __call__(
        self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, /
    ) -> torch.Tensor | None:
        """Compute `hidden` [T, H] → [T, H], in a new tensor; None for an unsupported step."""
        ...


class LayersOfPrompts(Protocol):
    """As `StackOfLayers`, for steps in which rows have several tokens."""

    def __call__(
        self,
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        last: torch.Tensor | None,
        /,
    ) -> torch.Tensor | None:
        """Compute `hidden` [T, H] → [T, H], in a new tensor, or [Q, H] of the tokens `last` i64[Q], the last ones of
        their rows; None for an unsupported step.
        """
        ...


class RoundsOfTokens(Protocol):
    """Several passes of the whole model in one call, for at most `most` decoding rows."""

    @property
    def most(self) -> int: ...

    def __call__(self, token_ids: torch.Tensor, keys: PagedKeys, ends: RoundEnds, /) -> RoundTokens:
        """Run the passes as `RoundKernel`."""
        ...


class FusedForward:
    """A Forward (see `tenonry_worker_torch.forward`) over fused layers; `embed` and `end` if the stage has them."""

    def __init__(
        self,
        embed: nn.Module | None,
        layers: list[FusedLayer],
        ropes: dict[str, RopeTable],
        end: FusedHead | RMSNorm | None,
        step: StepPlan,
    ) -> None:
        self.embed = embed
        self.layers = layers
        self.ropes = ropes
        self.end = end
        self.step = step
        self.can_prune = end is not None
        self.stack: StackOfLayers | None = None  # a kernel for all of them
        self.prompts: LayersOfPrompts | None = None
        self.rounds: RoundsOfTokens | None = None

    def __call__(
        self,
        inputs: torch.Tensor,
        positions: torch.Tensor,
        keep: torch.Tensor | None,
        plans: ForwardPlans,
    ) -> torch.Tensor:
        is_embedded = self.embed is None or inputs.is_floating_point()
        hidden = inputs if is_embedded else self.embed(inputs)
        lengths = plans.lengths
        turns = {kind: table.at(positions, lengths) for kind, table in self.ropes.items()}
        self.step.plan = plans.full
        is_pruned = plans.last is not None
        made = self._at_once(hidden, turns, keep, is_pruned=is_pruned)
        if made is not None:
            return self._ended(made, None if is_pruned else keep)
        *others, last = self.layers
        for layer in others:
            hidden = layer(hidden, *turns.get(layer.layer_type, NOT_ROTATED))
        turn = turns.get(last.layer_type, NOT_ROTATED)
        if not is_pruned:
            return self._ended(last(hidden, *turn), keep)
        self.step.plan = plans.last
        return self._ended(last(hidden, *turn, keep), None)

    def _at_once(
        self,
        hidden: torch.Tensor,
        turns: dict[str, tuple[torch.Tensor, torch.Tensor]],
        keep: torch.Tensor | None,
        *,
        is_pruned: bool,
    ) -> torch.Tensor | None:
        """`hidden` [T, H] → [T, H], or [Q, H] of the tokens `keep` i64[Q] of a pruned step, after all layers.

        None where these are called one by one.
        """
        if self.stack is None and self.prompts is None:
            return None
        (turn,) = turns.values()
        made = None
        if self.stack is not None and not is_pruned:
            made = self.stack(hidden, *turn)
        if made is None and self.prompts is not None:
            made = self.prompts(hidden, *turn, keep if is_pruned else None)
        return made

    def _ended(self, hidden: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
        """Output after the last layer, of the tokens `keep` i64[Q] or all."""
        if self.end is None:
            return hidden
        return self.end(hidden if keep is None else hidden.index_select(0, keep))

    def shortened(self, numbers: list[int]) -> FusedForward:
        """The same with these layers alone; returns normalised hidden states instead of logits."""
        return FusedForward(
            self.embed,
            [self.layers[number] for number in numbers],
            self.ropes,
            None if self.end is None else self.end.norm,
            self.step,
        )

    def pack(self, packing: Packing) -> None:
        """Lay all weights out anew, layer by layer; the model's copies are dropped, except the embedding."""
        for layer in self.layers:
            layer.pack(packing)
        if self.end is not None:
            self.end.head = self.end.head.packed(packing)


class FusedHead:
    """Modules after the layers: `hidden` [T, H] → logits [T, vocabulary]."""

    __slots__ = ("head", "norm", "softcap")

    def __init__(self, norm: RMSNorm, head: Linear, softcap: float) -> None:
        self.norm = norm
        self.head = head
        self.softcap = softcap

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.logits(self.norm(hidden))

    def logits(self, normed: torch.Tensor) -> torch.Tensor:
        """`normed` [T, H]: the last hidden states after the norm."""
        logits = self.head(normed)
        if self.softcap:
            logits.div_(self.softcap)
            logits.tanh_()
            logits.mul_(self.softcap)
        return logits


def fused_forward(
    model: PreTrainedModel, layers: dict[str, AttentionLayer], step: StepPlan, num_positions: int
) -> FusedForward | None:
    """Build the fused forward pass for positions below `num_positions`; None for a model with another structure."""
    _, inner = text_stack(model)
    stage = stage_of(model)
    names = {name for name, _ in inner.named_children()}
    if names != {"embed_tokens", "layers", "norm", "rotary_emb"}:
        return None
    if stage.is_first and not embeds_plainly(model):
        return None
    end = fused_head(model) if stage.is_last else None
    if stage.is_last and end is None:
        return None
    fused = fused_layers(model, layers)
    if fused is None:
        return None
    rotated = {layer.layer_type for layer in fused if isinstance(layer.attention, FusedAttention)}
    ropes = {
        kind: rope_table(inner.rotary_emb, kind, num_positions, model.dtype)
        for kind in sorted(rotated)
    }
    if any(table is None for table in ropes.values()):
        return None
    return FusedForward(inner.embed_tokens if stage.is_first else None, fused, ropes, end, step)


def fused_layers(
    model: PreTrainedModel, layers: dict[str, AttentionLayer]
) -> list[FusedLayer] | None:
    """Build the fused layers of the stage, in order; None if one has another structure."""
    blocks = blocks_of(model, layers.values())
    if blocks is None:
        return None
    fused = []
    for block in blocks:
        layer = fused_block(block)
        if layer is None:
            return None
        fused.append(layer)
    return fused


def fused_block(block: Block) -> FusedLayer | None:
    """Fused layer with attention, or a mixer instead of it; None if the layer has another structure."""
    if block.mixer is not None:
        return fused_mixer_layer(block.module, block.mixer, block.layer_type)
    attention = block.attention
    if attention is None:
        return None
    return fused_layer(block.module, attention.spec, attention, block.layer_type)


def fused_head(model: PreTrainedModel) -> FusedHead | None:
    """Build the norm after the layers and the head; None for another structure."""
    norm = rms_norm_of(text_stack(model)[1].norm)
    head = model.get_output_embeddings()
    if norm is None or not (is_linear(head) or isinstance(head, GatherLinear)):
        return None
    config = model.config.get_text_config()
    softcap = getattr(config, "final_logit_softcapping", None) or 0.0
    is_tied = head.weight is getattr(model.get_input_embeddings(), "weight", None)
    has_own = not is_tied or hasattr(head, STORED_WEIGHT)
    projection: Linear
    if isinstance(head, StoredLinear):
        projection = PartedLinear([head])
    else:
        projection = DenseLinear(
            head.weight.detach(), detached_bias(head), sources=(head,) if has_own else ()
        )
    if isinstance(head, GatherLinear):
        projection = GatheredLinear(projection, head.group, head.out_features)
    return FusedHead(norm, projection, float(softcap))
