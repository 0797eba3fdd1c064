"""Calls of rotary modules. Worker process."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import nn


def call_rotary(
    rotary: nn.Module, x: torch.Tensor, positions: torch.Tensor, layer_type: str
) -> tuple[Any, Any]:
    """Call the model's module for `positions` [1, T], with or without a layer type.

    A module with sections for time, height and width receives a position for each of them; those of text are equal.
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
    """Device of the module; the CPU if it has no frequencies."""
    devices = [buffer.device for buffer in rotary.buffers()]
    return devices[0] if devices else torch.device("cpu")
