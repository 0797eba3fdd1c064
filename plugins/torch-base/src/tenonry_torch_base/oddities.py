"""Notes on unread files of a model's folder, and detection of undeclared quantised weights. Worker process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tenonry.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tenonry_hf_hub import StoredTensor

FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
FLOATS_OF_8_BITS = frozenset({"F8_E4M3", "F8_E5M2"})
WEIGHT = "weight"
SCALE = "scale"
GGUF = ".gguf"
MAX_PATTERNS = 8
NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def folder_notes(path: str | Path) -> Iterator[str]:
    """Other files in the folder that some programs would apply."""
    if (Path(path) / "adapter_config.json").exists():
        yield (
            "adapter_config.json and the adapter that it describes are not applied to the weights beside them; serve "
            f"the adapter with --max-loras 1 --lora-modules NAME={path}"
        )


def check_float(key: str, tensor: StoredTensor, stored: Mapping[str, StoredTensor]) -> None:
    """Raise ModelError if a weight's numbers are stored in another form that nothing declares.

    Plain floats of 8 bits are numbers; those with a scale tensor are not.
    """
    if tensor.dtype in FLOATS or tensor.file.suffix == GGUF:
        return
    scale = next(_scales(key, stored), None)
    if scale is None and tensor.dtype in FLOATS_OF_8_BITS:
        return
    beside = "" if scale is None else f", with {scale} beside it"
    raise ModelError(
        f"{tensor.file}: tensor {key} is {tensor.dtype}{beside}: the weights are quantised, and config.json does not "
        "say how (no quantization_config), so their numbers are not known; take a checkpoint that declares it, or one "
        "with floats"
    )


def _scales(key: str, stored: Mapping[str, StoredTensor]) -> Iterator[str]:
    """Names of scales that belong to the tensor `key`."""
    stem = key.removesuffix(WEIGHT)
    for name in stored:
        if name != key and name.startswith(stem) and SCALE in name[len(stem) :]:
            yield name


def names_by_pattern(names: Iterable[str]) -> str:
    """Format names with their layer numbers as `*` and their counts, the most frequent first."""
    counts: dict[str, int] = {}
    for name in names:
        pattern = NUMBER.sub("*", name)
        counts[pattern] = counts.get(pattern, 0) + 1
    ordered = sorted(counts, key=lambda pattern: (-counts[pattern], pattern))
    shown = [
        f"{pattern} ({counts[pattern]})" if counts[pattern] > 1 else pattern
        for pattern in ordered[:MAX_PATTERNS]
    ]
    return ", ".join(shown) + (", …" if len(ordered) > MAX_PATTERNS else "")
