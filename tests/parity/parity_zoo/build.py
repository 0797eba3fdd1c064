"""A tiny model of a type, with random weights, and its folder as a hub would have it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from parity_zoo.overrides import OVERRIDES
from parity_zoo.recipes import Recipe
from parity_zoo.shrink import shrunk
from parity_zoo.weights import fill

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

MAX_PARAMETERS = 20_000_000


@dataclasses.dataclass
class TooLarge(Exception):
    """The type does not become tiny."""

    parameters: int

    def __str__(self) -> str:
        return f"{self.parameters:,} parameters after shrinking (at most {MAX_PARAMETERS:,})"


def causal_types() -> list[str]:
    """Every causal type of the installed transformers, by the name in `config.json`."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if name in CONFIG_MAPPING)


def tiny_config(name: str) -> PretrainedConfig:
    """The type's own configuration class, tiny."""
    from transformers import CONFIG_MAPPING

    return shrunk(CONFIG_MAPPING[name], OVERRIDES.get(name, {}))


def tiny_model(name: str, recipe: Recipe = Recipe()) -> PreTrainedModel:  # noqa: B008 - it is frozen
    """The model in float32, every weight random. Raises TooLarge, and whatever the family raises."""
    from transformers import AutoModelForCausalLM

    config = tiny_config(name)
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    size = sum(weight.numel() for weight in skeleton.parameters())
    if size > MAX_PARAMETERS:
        raise TooLarge(size)
    torch.manual_seed(recipe.seed)
    model = AutoModelForCausalLM.from_config(tiny_config(name), dtype=torch.float32)
    fill(model, recipe)
    return model.eval()


def save(model: PreTrainedModel, folder: Path) -> None:
    """Write configuration and safetensors."""
    model.save_pretrained(folder, safe_serialization=True)
