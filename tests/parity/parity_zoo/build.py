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


@dataclasses.dataclass(frozen=True)
class Group:
    """Types that one class of transformers builds: `mapping` is its table, `auto_class` its name."""

    mapping: str
    auto_class: str


# What a name may begin with, before a colon; causal types go without.
GROUPS = {
    "causal": Group("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "AutoModelForCausalLM"),
    "text": Group("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", "AutoModelForImageTextToText"),
    "seq2seq": Group("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", "AutoModelForSeq2SeqLM"),
}


def group_of(name: str) -> str:
    """The group of a type: `text` of `text:qwen2_vl`."""
    return name.partition(":")[0] if ":" in name else "causal"


def types_of(group: str) -> list[str]:
    """Every type of a group that the installed transformers has; `text` without those that are causal already."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto import modeling_auto

    found = [
        name for name in getattr(modeling_auto, GROUPS[group].mapping) if name in CONFIG_MAPPING
    ]
    if group == "causal":
        return sorted(found)
    known = types_of("causal") if group == "text" else []
    return sorted(f"{group}:{name}" for name in found if name not in known)


def auto_class_of(name: str) -> type:
    """The class of transformers that builds and reads the type."""
    import transformers

    return getattr(transformers, GROUPS[group_of(name)].auto_class)


def tiny_config(name: str) -> PretrainedConfig:
    """The type's own configuration class, tiny."""
    from transformers import CONFIG_MAPPING

    return shrunk(CONFIG_MAPPING[name.rpartition(":")[2]], OVERRIDES.get(name, {}))


def tiny_model(name: str, recipe: Recipe = Recipe()) -> PreTrainedModel:  # noqa: B008 - it is frozen
    """The model in float32, every weight random. Raises TooLarge, and whatever the family raises."""
    auto_class = auto_class_of(name)
    config = tiny_config(name)
    with torch.device("meta"):
        skeleton = auto_class.from_config(config, dtype=torch.float32)
    size = sum(weight.numel() for weight in skeleton.parameters())
    if size > MAX_PARAMETERS:
        raise TooLarge(size)
    torch.manual_seed(recipe.seed)
    model = auto_class.from_config(tiny_config(name), dtype=torch.float32)
    fill(model, recipe)
    return model.eval()


def save(model: PreTrainedModel, folder: Path) -> None:
    """Write configuration and safetensors."""
    model.save_pretrained(folder, safe_serialization=True)
