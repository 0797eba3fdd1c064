"""Candidates for a model: it pools, or it generates. Light, and without inspecting the model's layers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tenonry.info import ModelInfo

POOLING = "pooling"
# Classes of transformers that end in hidden states or in a head for classes; those that generate have other names.
POOLS = re.compile(
    r"(?!.*(LMHead|DoubleHeads|EncoderDecoder)).*(Model|ForSequenceClassification|ForMaskedLM)"
)


def pools(model: ModelInfo) -> bool:
    """Return True if config.json names a class that cannot generate, or the folder is one of sentence-transformers."""
    is_folder_of_modules = bool(model.path) and (Path(model.path) / "modules.json").exists()
    return is_folder_of_modules or POOLS.fullmatch(model.architecture) is not None


def chosen_by_model(candidates: Sequence[str], model: ModelInfo) -> tuple[str, ...]:
    """A model that pools is for the worker `pooling`, any other for the others; one list alone is left as it is."""
    pooling = tuple(name for name in candidates if name == POOLING)
    others = tuple(name for name in candidates if name != POOLING)
    wanted = pooling if pools(model) else others
    return wanted or tuple(candidates)
