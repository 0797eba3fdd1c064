"""Layers of a model that receive further image features besides its embeddings. Worker process."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ARGUMENT = "deepstack_visual_embeds"


def has_deepstack(model: PreTrainedModel) -> bool:
    """Return True if image features are added at several layers of the model."""
    return any(_takes_several(module) for module in model.modules())


def deep_layers(model: PreTrainedModel) -> list[nn.Module]:
    """Layers after which image features are added; none unless declared as in Qwen3-VL."""
    tower = getattr(model.config, "vision_config", None)
    count = len(getattr(tower, "deepstack_visual_indexes", None) or ())
    stacks = [module for module in model.modules() if _takes_several(module)]
    if len(stacks) != 1:
        return []
    layers = getattr(stacks[0], "layers", None)
    return list(layers)[:count] if isinstance(layers, nn.ModuleList) else []


def _takes_several(module: nn.Module) -> bool:
    return ARGUMENT in inspect.signature(type(module).forward).parameters
