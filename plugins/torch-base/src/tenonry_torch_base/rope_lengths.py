"""Rotary tables that depend on the sequence length: dynamic NTK scaling and LongRoPE. Worker process.

transformers chooses such a table in every forward pass, by the largest position in it, and dynamic NTK keeps the last
one. In a batch each row then gets the table of its longest neighbour. One row at a time, from a fresh module, is right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

DYNAMIC = "dynamic"
LONGROPE = "longrope"


def length_types(module: nn.Module) -> dict[str, str]:
    """Layer type → rope type, of types that depend on the length; "" for a module without layer types."""
    types: Any = getattr(module, "rope_type", None)
    by_layer = types if isinstance(types, dict) else {"": types}
    return {
        layer: kind
        for layer, kind in by_layer.items()
        if isinstance(kind, str) and (DYNAMIC in kind or kind == LONGROPE)
    }


def depends_on_length(model: nn.Module) -> bool:
    """Return True if any rotary module of the model picks its table by the longest sequence of a batch."""
    return any(length_types(module) for module in model.modules())


def reset_tables(model: nn.Module) -> None:
    """Put every rotary module back to its first table, so that the next call depends on nothing before it."""
    for module in model.modules():
        for layer, kind in length_types(module).items():
            if DYNAMIC in kind:
                _reset(module, f"{layer}_" if layer else "")


def _reset(module: Any, prefix: str) -> None:
    original = getattr(module, f"{prefix}original_inv_freq")
    frequencies = getattr(module, f"{prefix}inv_freq")
    setattr(module, f"{prefix}inv_freq", original.to(frequencies.device))
    setattr(module, f"{prefix}max_seq_len_cached", module.original_max_seq_len)
