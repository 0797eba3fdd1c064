"""Position encoding, from metadata and, for Llama 3.1 and later, from the tensor with its factors.

Any process.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

from tenonry.errors import ModelError
from tenonry_hf_hub.gguf.header import Header

FREQUENCIES = "rope_freqs.weight"
# As Llama 3.1 has them and all models after it; only the factor differs, and is the largest of the file's.
LOW = 1.0
HIGH = 4.0
ORIGINAL = 8192
NEAR = 1e-3


def rope_parameters(header: Header, name: str, head_dim: int, path: Path) -> dict[str, Any]:
    """`rope_parameters` of config.json. Raises ModelError for a way to scale positions that is not known."""
    values = {
        key.removeprefix(f"{name}.rope."): value
        for key, value in header.metadata.items()
        if key.startswith(f"{name}.rope.")
    }
    theta = float(values.get("freq_base", 10_000.0))
    if FREQUENCIES in header.tensors:
        return _llama3(header, theta, head_dim, path)
    kind = values.get("scaling.type", "linear" if "scale_linear" in values else "none")
    factor = float(values.get("scaling.factor", values.get("scale_linear", 1.0)))
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return {"rope_type": "default", "rope_theta": theta}
    found = {"rope_type": kind, "rope_theta": theta, "factor": factor}
    if kind == "linear":
        return found
    original = values.get("scaling.original_context_length")
    if kind == "yarn" and isinstance(original, int) and original > 0:
        return found | {"original_max_position_embeddings": original}
    raise ModelError(
        f"{path}: {name}.rope.scaling.type is {str(kind)[:80]!r}; none, linear and yarn (with original_context_length) "
        "are read from GGUF; take the model's safetensors"
    )


def _llama3(header: Header, theta: float, head_dim: int, path: Path) -> dict[str, Any]:
    """Rope parameters that reproduce the factors of the file. Raises ModelError if none do."""
    tensor = header.tensors[FREQUENCIES]
    if tensor.kind != "F32" or tensor.shape != (head_dim // 2,):
        raise ModelError(
            f"{path}: tensor {FREQUENCIES} is {tensor.kind} {list(tensor.shape)}, not F32 [{head_dim // 2}]"
        )
    with path.open("rb") as file:
        file.seek(tensor.begin)
        stored = struct.unpack(f"<{head_dim // 2}f", file.read(tensor.end - tensor.begin))
    factor = round(max(stored), 3)
    made = [_factor(theta, place / head_dim, factor) for place in range(0, head_dim, 2)]
    pairs = zip(stored, made, strict=True)
    if not all(abs(left - right) <= NEAR * abs(right) for left, right in pairs):
        raise ModelError(
            f"{path}: the factors in tensor {FREQUENCIES} are not those of Llama 3's scaling by {factor:g}, the only "
            "ones that are read from GGUF; take the model's safetensors"
        )
    return {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": LOW,
        "high_freq_factor": HIGH,
        "original_max_position_embeddings": ORIGINAL,
    }


def _factor(theta: float, exponent: float, factor: float) -> float:
    """Divisor of the frequency theta^−exponent."""
    wave = 2 * math.pi * theta**exponent
    if wave < ORIGINAL / HIGH:
        return 1.0
    if wave > ORIGINAL / LOW:
        return factor
    smooth = (ORIGINAL / wave - LOW) / (HIGH - LOW)
    return 1 / ((1 - smooth) / factor + smooth)
