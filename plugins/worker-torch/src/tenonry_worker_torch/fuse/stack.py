"""The decoder layers of a stage, each with the attention or the layer with state inside. Worker process."""

from __future__ import annotations

import dataclasses
from types import NoneType
from typing import TYPE_CHECKING, NamedTuple

from tenonry_torch_base.attention.base import LayerSpec
from tenonry_torch_base.attention.layer import LAYER_ATTRIBUTE
from tenonry_torch_base.parallel.stage import stage_of
from tenonry_torch_base.text_part import text_stack
from tenonry_worker_torch.fuse.mixers.part import FusedMixer, mixer_part

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn
    from transformers import PreTrainedModel

    from tenonry_torch_base.attention.layer import AttentionLayer

# Attributes with the position of a layer.
PLACES = frozenset({"layer_idx", "layer_index", "layer_id", "layer_number", "index"})
PLAIN = (str, int, float, NoneType)
# Of a layer of attention, all but its name and its place.
_FIELDS = [field for field in dataclasses.fields(LayerSpec) if field.name not in {"name", "index"}]


class Block(NamedTuple):
    """A decoder layer of a model: it has either attention or a mixer. `layer_type`: as the model's config names it."""

    module: nn.Module
    layer_type: str
    attention: AttentionLayer | None
    mixer: FusedMixer | None


def layer_types_of(model: PreTrainedModel) -> list[str]:
    """Type of each layer of the model in its config, including other stages."""
    config = model.config.get_text_config()
    types = getattr(config, "layer_types", None)
    if not types:
        types = ["full_attention"] * config.num_hidden_layers
    return list(types)


def blocks_of(model: PreTrainedModel, layers: Iterable[AttentionLayer]) -> list[Block] | None:
    """Return the decoder layers of the stage, in order; None unless each has one of `layers`, or one mixer."""
    stage = stage_of(model)
    modules = stage.own(text_stack(model)[1].layers)
    types = stage.own(layer_types_of(model))
    if len(types) != len(modules):  # LongCat-Flash counts two for each of its layers
        return None
    known = {id(layer): layer for layer in layers}
    blocks = [
        Block(module, layer_type, _attention_of(module, known), mixer_part(module))
        for module, layer_type in zip(modules, types, strict=True)
    ]
    found = [block for block in blocks if block.attention is not None]
    is_one_of_each = all((block.attention is None) != (block.mixer is None) for block in blocks)
    return blocks if is_one_of_each and len(found) == len(known) else None


def _attention_of(module: nn.Module, known: Mapping[int, AttentionLayer]) -> AttentionLayer | None:
    """Return the attention layer of a decoder layer, by the module's attribute; None unless there is exactly one."""
    held = [vars(part).get(LAYER_ATTRIBUTE) for part in module.modules()]
    found = [known[id(layer)] for layer in held if id(layer) in known]
    return found[0] if len(found) == 1 else None


def kind_of(block: Block) -> tuple[object, ...]:
    """Equal for layers that differ in nothing but their weights and their place."""
    parts: list[object] = [
        (name, type(part), _settings_of(part)) for name, part in block.module.named_modules()
    ]
    shapes = [(name, weight.shape) for name, weight in block.module.named_parameters()]
    spec = None
    if block.attention is not None:
        found = block.attention.spec
        spec = tuple(getattr(found, field.name) for field in _FIELDS)
    return (block.layer_type, spec, *parts, *shapes)


def _settings_of(module: nn.Module) -> tuple[tuple[str, object], ...]:
    """Plain attributes of a module, possibly read by its code."""
    held = vars(module)
    public = [name for name in held if name[0] != "_" and name not in PLACES]
    return tuple((name, held[name]) for name in sorted(public) if isinstance(held[name], PLAIN))
