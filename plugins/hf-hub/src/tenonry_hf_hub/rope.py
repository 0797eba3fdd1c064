"""Effect of rope scaling on the longest sequence of a model. Front end, at start-up."""

from __future__ import annotations

from typing import Any

# These scale positions inside a length that config.json already gives in full.
ALREADY_SCALED = frozenset({"default", "longrope", "su", "llama3", "mrope", "proportional"})


def scaled_length(length: int, config: dict[str, Any]) -> int:
    """Longest sequence, in tokens, of a model whose config.json declares `length` positions.

    `linear` and `dynamic` multiply it by their factor; `yarn` (arXiv:2309.00071) multiplies the length that the model
    was trained on, which the same entry names. Gemma 3, and configurations that scale each layer type separately,
    declare the final length, except for `dynamic`, which always grows from it.
    """
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(scaling, dict):
        return length
    dynamic = [each for each in scaling.values() if isinstance(each, dict) and _is_dynamic(each)]
    if dynamic:
        return min(_scaled(length, each) for each in dynamic)
    if str(config.get("model_type", "")).startswith("gemma3") and not _is_dynamic(scaling):
        return length
    return _scaled(length, scaling)


def _is_dynamic(scaling: dict[str, Any]) -> bool:
    return "dynamic" in (scaling.get("rope_type"), scaling.get("type"))


def _scaled(length: int, scaling: dict[str, Any]) -> int:
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    factor = scaling.get("factor")
    if not isinstance(kind, str):
        return length
    if kind in ALREADY_SCALED or not isinstance(factor, int | float) or not 1.0 <= factor < 1 << 20:
        return length
    if kind == "yarn":
        original = scaling.get("original_max_position_embeddings")
        if isinstance(original, int) and original > 0:
            return int(original * factor)
    return int(length * factor)
