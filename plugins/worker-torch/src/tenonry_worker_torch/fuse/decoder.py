"""The whole lean forward pass: embedding, lean layers, norm, head, or what a pipeline stage has of them. Worker
process.

The last layer goes on only with the tokens that are sampled from: of a long prompt, that is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tenonry_torch_base.text_part import text_stack
from tenonry_worker_torch.fuse.block import is_linear
from tenonry_worker_torch.fuse.embedding import embeds_plainly
from tenonry_worker_torch.fuse.layer import LeanLayer, lean_layer
from tenonry_worker_torch.fuse.linear import DenseLinear, GatheredLinear, Linear, detached_bias
from tenonry_worker_torch.fuse.norm import RMSNorm, rms_norm_of
from tenonry_worker_torch.fuse.rope import RopeTable, rope_table
from tenonry_worker_torch.parallel.layers import GatherLinear
from tenonry_worker_torch.parallel.stage import stage_of

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

    from tenonry_worker_torch.attention.layer import AttentionLayer, StepPlan
    from tenonry_worker_torch.forward import ForwardPlans


class LeanForward:
    """A Forward (see `tenonry_worker_torch.forward`) over lean layers; `embed` and `end` where the stage has them."""

    def __init__(
        self,
        embed: nn.Module | None,
        layers: list[LeanLayer],
        ropes: dict[str, RopeTable],
        end: LeanHead | None,
        step: StepPlan,
    ) -> None:
        self.embed = embed
        self.layers = layers
        self.ropes = ropes
        self.end = end
        self.step = step
        self.can_prune = end is not None

    def __call__(
        self,
        inputs: torch.Tensor,
        positions: torch.Tensor,
        keep: torch.Tensor | None,
        plans: ForwardPlans,
    ) -> torch.Tensor:
        hidden = inputs if self.embed is None else self.embed(inputs)
        turns = {kind: table.at(positions) for kind, table in self.ropes.items()}
        self.step.plan = plans.full
        for layer in self.layers[:-1]:
            hidden = layer(hidden, *turns[layer.layer_type])
        last = self.layers[-1]
        if plans.last is not None:
            self.step.plan = plans.last
            hidden = last(hidden, *turns[last.layer_type], keep)
        else:
            hidden = last(hidden, *turns[last.layer_type])
            if keep is not None and self.end is not None:
                hidden = hidden.index_select(0, keep)
        return hidden if self.end is None else self.end(hidden)

    def pack(self) -> None:
        """Give all weights to oneDNN, layer by layer; what the model holds of them goes, except the embedding."""
        for layer in self.layers:
            layer.pack()
        if self.end is not None:
            self.end.head = self.end.head.packed()


class LeanHead:
    """What comes after the layers: `hidden` [T, H] → logits [T, vocabulary]."""

    __slots__ = ("head", "norm", "softcap")

    def __init__(
        self,
        norm: RMSNorm,
        head: Linear,
        softcap: float,
    ) -> None:
        self.norm = norm
        self.head = head
        self.softcap = softcap

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.norm(hidden))
        if self.softcap:
            logits.div_(self.softcap)
            logits.tanh_()
            logits.mul_(self.softcap)
        return logits


def layer_types_of(model: PreTrainedModel) -> list[str]:
    """The type of each layer of the model as its config names it, those of other stages included."""
    config = model.config.get_text_config()
    types = getattr(config, "layer_types", None)
    if not types:
        types = ["full_attention"] * config.num_hidden_layers
    return list(types)


def lean_forward(
    model: PreTrainedModel,
    layers: dict[str, AttentionLayer],
    step: StepPlan,
    num_positions: int,
) -> LeanForward | None:
    """For positions below `num_positions`. Build it, or None when the model is put together differently."""
    _, inner = text_stack(model)
    stage = stage_of(model)
    names = {name for name, _ in inner.named_children()}
    if names != {"embed_tokens", "layers", "norm", "rotary_emb"}:
        return None
    if stage.is_first and not embeds_plainly(model):
        return None
    blocks = stage.own(inner.layers)
    types = stage.own(layer_types_of(model))
    end = lean_head(model) if stage.is_last else None
    if len(blocks) != len(layers) or (stage.is_last and end is None):
        return None
    ordered = sorted(layers.values(), key=lambda layer: layer.spec.index)
    lean = [
        lean_layer(block, attention.spec, attention, kind)
        for block, attention, kind in zip(blocks, ordered, types, strict=True)
    ]
    ropes = {
        kind: rope_table(inner.rotary_emb, kind, num_positions, model.dtype)
        for kind in sorted(set(types))
    }
    if any(layer is None for layer in lean):
        return None
    if any(table is None for table in ropes.values()):
        return None
    return LeanForward(
        inner.embed_tokens if stage.is_first else None,
        lean,
        ropes,
        end,
        step,
    )


def lean_head(model: PreTrainedModel) -> LeanHead | None:
    """The norm after the layers and the head, or None where they are of another kind."""
    norm = rms_norm_of(text_stack(model)[1].norm)
    head = model.get_output_embeddings()
    if norm is None or not (is_linear(head) or isinstance(head, GatherLinear)):
        return None
    config = model.config.get_text_config()
    softcap = getattr(config, "final_logit_softcapping", None) or 0.0
    is_tied = head.weight is getattr(model.get_input_embeddings(), "weight", None)
    projection: Linear = DenseLinear(
        head.weight.detach(),
        detached_bias(head),
        sources=() if is_tied else (head,),
    )
    if isinstance(head, GatherLinear):
        projection = GatheredLinear(projection, head.group, head.out_features)
    return LeanHead(norm, projection, float(softcap))
