"""Rotary modules: how they are called, and how their frequencies are fixed. Worker process.

Some models choose frequencies by the longest sequence of a batch (`dynamic`, `longrope`). What a request gets must not
depend on its neighbours, so they are fixed at start, for sequences of the length limit.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import nn

FIXED = "fixed"


def call_rotary(
    rotary: nn.Module, x: torch.Tensor, positions: torch.Tensor, layer_type: str
) -> tuple[Any, Any]:
    """The model's module for `positions` [1, T], whether or not it takes a layer type.

    One with sections for time, height and width is given a position for each of them; those of text are alike.
    """
    sections = getattr(rotary, "mrope_section", None)
    if isinstance(sections, dict):
        sections = sections.get(layer_type)
    if sections:  # the modules of transformers 5.17 do not repeat positions themselves
        positions = positions.expand(len(sections), *positions.shape)
    if "layer_type" in inspect.signature(rotary.forward).parameters:
        return rotary(x, positions, layer_type)
    return rotary(x, positions)


def device_of(rotary: nn.Module) -> torch.device:
    """Where the module computes; the CPU if it keeps no frequencies."""
    devices = [buffer.device for buffer in rotary.buffers()]
    return devices[0] if devices else torch.device("cpu")


def fix_frequencies(model: nn.Module, max_model_len: int) -> int:
    """Fix every rotary module that would adapt; how many there were.

    The module is run once at the last position, which makes it choose; then it no longer is of a type that adapts.
    """
    found = 0
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        by_layer = kinds if isinstance(kinds, dict) else {"": kinds}
        adapting = [layer for layer, kind in by_layer.items() if kind is not None and _adapts(kind)]
        for layer_type in adapting:
            device = device_of(module)
            last = torch.full((1, 1), max_model_len - 1, device=device)
            with torch.no_grad():
                call_rotary(module, torch.zeros(1, 1, 1, device=device), last, layer_type)
            found += 1
        if adapting:
            fixed = {
                layer: FIXED if layer in adapting else kind for layer, kind in by_layer.items()
            }
            module.rope_type = fixed if isinstance(kinds, dict) else FIXED
    return found


def _adapts(kind: str) -> bool:
    return "dynamic" in kind or kind == "longrope"
