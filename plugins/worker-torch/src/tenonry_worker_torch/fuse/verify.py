"""Compares a fused layer with its original module, in float32 on random weights. Worker process.

Each kind of layer of a model is copied, its weights are replaced by random ones (so that a norm of all ones or a bias
of zeros hides nothing), and both are run on the same input.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch

from tenonry_torch_base.attention.layer import LAYER_ATTRIBUTE
from tenonry_torch_base.attention.math import causal_attention
from tenonry_torch_base.cache_argument import cache_argument_of
from tenonry_torch_base.seeded import seeded
from tenonry_torch_base.text_part import text_stack
from tenonry_worker_torch.fuse.layer import FusedLayer, fused_layer, fused_mixer_layer
from tenonry_worker_torch.fuse.mixers.part import mixer_part
from tenonry_worker_torch.fuse.rope import rope_table
from tenonry_worker_torch.fuse.stack import blocks_of
from tenonry_worker_torch.fuse.trial import is_same, is_small, random_copy
from tenonry_worker_torch.loading.rotary import call_rotary

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn
    from transformers import PreTrainedModel

    from tenonry_torch_base.attention.base import LayerSpec
    from tenonry_torch_base.attention.layer import AttentionLayer

LENGTH = 6


def layers_agree(model: PreTrainedModel, layers: Iterable[AttentionLayer]) -> bool:
    """One layer of each kind, compared. Layers too large to copy are left to the comparison of the whole model.

    All kinds are tried even after one differed: ranks that share layers must do the same.
    """
    seen = set()
    agreed = True
    rotary = text_stack(model)[1].rotary_emb
    for block in blocks_of(model, layers) or ():
        parts = [f"{name}:{type(part).__name__}" for name, part in block.module.named_modules()]
        spec = None if block.attention is None else block.attention.spec
        kind = (block.layer_type, spec is not None and spec.window > 0, *parts)
        if kind in seen:
            continue
        seen.add(kind)
        if is_small(block.module):
            agreed &= layer_agrees(block.module, spec, block.layer_type, rotary)
    return agreed


def layer_agrees(
    block: nn.Module, spec: LayerSpec | None, layer_type: str, rotary: nn.Module
) -> bool:
    """Compare a random float32 copy of `block` with the fused layer made from it. `spec`: None without attention."""
    # On the block's own device: ranks can sum only on the device of their process group.
    device = next(block.parameters()).device
    with seeded(0, device), torch.no_grad():
        copied = random_copy(block)
        fused = _fused_of(copied, spec, layer_type)
        if fused is None:
            return False
        rotary_copy = copy.deepcopy(rotary).to(device)
        hidden = torch.randn(LENGTH, _hidden_size(copied), device=device)
        positions = torch.arange(LENGTH, device=device)[None]
        embeddings = call_rotary(rotary_copy, hidden[None], positions, layer_type)
        wanted = copied(
            hidden[None],
            attention_mask=None,
            position_ids=positions,
            position_embeddings=embeddings,
            **{cache_argument_of(type(copied)): None},
        )
        if isinstance(wanted, tuple):
            wanted = wanted[0]
        wanted = wanted.view(LENGTH, -1)
        if spec is None:
            got = fused(hidden, None, None)
        else:
            table = rope_table(rotary_copy, layer_type, LENGTH, torch.float32)
            if table is None:
                return False
            lengths = torch.full_like(positions[0], LENGTH)
            got = fused(hidden, *table.at(positions[0], lengths))
    return is_same(got, wanted)


def _fused_of(copied: nn.Module, spec: LayerSpec | None, layer_type: str) -> FusedLayer | None:
    """The fused layer of a copied block, whose attention, in both, becomes a plain one over one prompt."""
    if spec is None:
        return _fused_with_mixer(copied, layer_type)

    def attend(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        _both: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return causal_attention(query, key, value, spec)

    for module in copied.modules():
        if hasattr(module, LAYER_ATTRIBUTE):
            setattr(
                module, LAYER_ATTRIBUTE, lambda _, query, key, value, *__: attend(query, key, value)
            )
    return fused_layer(copied, spec, attend, layer_type)


def _fused_with_mixer(copied: nn.Module, layer_type: str) -> FusedLayer | None:
    """Both run the code of the mixer's class; the path of decoding rows is compared apart."""
    part = mixer_part(copied)
    if part is None:
        return None
    module = getattr(copied, part.name)
    del module.forward
    part.over_step = lambda x: module(x[None])[0]
    return fused_mixer_layer(copied, part, layer_type)


def _hidden_size(block: nn.Module) -> int:
    """Return the number of weights of a norm of the block."""
    norms = [part for name, part in block.named_children() if name.endswith("norm")]
    return int(norms[0].weight.shape[0])
