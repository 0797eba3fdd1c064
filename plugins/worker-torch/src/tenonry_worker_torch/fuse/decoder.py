"""The whole lean forward pass: embedding, lean layers, norm, head. Worker process.

The last layer goes on only with the tokens that are sampled from: of a long prompt, that is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from tenonry_worker_torch.fuse.block import is_linear
from tenonry_worker_torch.fuse.layer import LeanLayer, lean_layer
from tenonry_worker_torch.fuse.linear import DenseLinear, Linear
from tenonry_worker_torch.fuse.norm import RMSNorm, rms_norm_of
from tenonry_worker_torch.fuse.rope import RopeTable, rope_table
from tenonry_worker_torch.loading.probe import PROMPT_LENGTHS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from tenonry_worker_torch.attention.layer import AttentionLayer, StepPlan
    from tenonry_worker_torch.forward import ForwardPlans


class LeanForward:
    """A Forward (see `tenonry_worker_torch.forward`) over lean layers."""

    can_prune = True

    def __init__(
        self,
        embed: nn.Module,
        layers: list[LeanLayer],
        ropes: dict[str, RopeTable],
        norm: RMSNorm,
        head: Linear,
        softcap: float,
        step: StepPlan,
    ) -> None:
        self.embed, self.layers, self.ropes = embed, layers, ropes
        self.norm, self.head, self.softcap, self.step = norm, head, softcap, step

    def __call__(
        self, token_ids: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor | None, plans: ForwardPlans
    ) -> torch.Tensor:
        hidden = self.embed(token_ids)
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
            if keep is not None:
                hidden = hidden.index_select(0, keep)
        logits = self.head(self.norm(hidden))
        if self.softcap:
            logits = logits.div_(self.softcap).tanh_().mul_(self.softcap)
        return logits

    def pack(self) -> None:
        """Give all weights to oneDNN, layer by layer; what the model holds of them goes, except the embedding."""
        for layer in self.layers:
            layer.pack()
        self.head = self.head.packed()


def layer_types_of(model: PreTrainedModel, count: int) -> list[str]:
    """The type of each layer as its config names it."""
    return list(getattr(model.config.get_text_config(), "layer_types", None) or ["full_attention"] * count)


def lean_forward(
    model: PreTrainedModel, layers: dict[str, AttentionLayer], step: StepPlan, max_model_len: int
) -> LeanForward | None:
    """Build it, or None when the model is put together differently."""
    inner, head = model.base_model, model.get_output_embeddings()
    blocks = getattr(inner, "layers", None)
    names = {name for name, _ in inner.named_children()}
    if names != {"embed_tokens", "layers", "norm", "rotary_emb"} or not is_linear(head):
        return None
    norm = rms_norm_of(inner.norm)
    if norm is None or len(blocks) != len(layers):
        return None
    types = layer_types_of(model, len(blocks))
    ordered = sorted(layers.values(), key=lambda layer: layer.spec.index)
    lean = [
        lean_layer(block, attention.spec, attention, kind)
        for block, attention, kind in zip(blocks, ordered, types, strict=True)
    ]
    positions = max(max_model_len, *PROMPT_LENGTHS)  # the self check needs its prompts to fit
    ropes = {kind: rope_table(inner.rotary_emb, kind, positions, model.dtype) for kind in sorted(set(types))}
    if any(layer is None for layer in lean) or any(table is None for table in ropes.values()):
        return None
    softcap = float(getattr(model.config.get_text_config(), "final_logit_softcapping", None) or 0.0)
    is_tied = head.weight is model.get_input_embeddings().weight
    dense = DenseLinear(
        head.weight.detach(), None if head.bias is None else head.bias.detach(), () if is_tied else (head,)
    )
    return LeanForward(inner.embed_tokens, lean, ropes, norm, dense, softcap, step)
