"""Location of a model, and the registered model names. Front end, at start-up."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from tenonry.plugin import Point
from tenonry.plugin.discovery import installed

# A name refers to a function without arguments that returns a folder or a GGUF file, or a Located with that path; or to
# the folder itself.
MODELS = Point(
    "tenonry.models", provider={"demo": "tenonry-demo-model", "smollm2": "tenonry-model-smollm2"}
)


class Located(NamedTuple):
    """Location of a model: its folder, and the resolved commit of a hub model ("" otherwise). `generation`: fields of
    generation_config.json that its files lack.
    """

    path: Path
    commit: str = ""
    generation: Mapping[str, Any] = MappingProxyType({})


def registered_names() -> list[str]:
    """Model names that installed distributions register in the group `tenonry.models`."""
    return [entry.name for entry in installed(MODELS)]


def nearest(name: str) -> str:
    """End of a "not found" error: the registered name that was probably meant, or all registered ones."""
    names = registered_names()
    near = difflib.get_close_matches(name, names, n=1)
    package = MODELS.provider.get(name)
    if near:
        return f"; did you mean the registered name '{near[0]}'?"
    if package:
        return f"; the model '{name}' comes with: pip install {package}"
    return f"; registered names: {', '.join(names) or 'none'}"
