"""Detection of a mixer's mechanism, by the names of its parts. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenonry_worker_torch.fuse.mixers.delta_rule import delta_rule
from tenonry_worker_torch.fuse.mixers.selective_scan import selective_scan
from tenonry_worker_torch.fuse.mixers.short_convolution import short_convolution

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tenonry_worker_torch.state.mixer import DecodePath, PackedMixer, PromptPath


def path_of(module: nn.Module) -> DecodePath | None:
    """Build a path from the module's own parameters; None for another mechanism. It is verified separately."""
    try:
        if _has(module, "A_log", "dt_bias", "num_v_heads", "head_k_dim", "norm"):
            return delta_rule(module)
        if _has(module, "A_log", "dt_bias", "D", "n_groups", "ssm_state_size", "norm"):
            return selective_scan(module)
        if _has(module, "conv", "in_proj", "out_proj"):
            return short_convolution(module)
    except AttributeError:  # a part by another name: a mechanism that is not known here
        return None
    return None


def prompt_path_of(path: DecodePath, device: torch.device) -> PromptPath | None:
    """Build the path for prompt chunks, if the mechanism has one; None on devices with kernels of the module."""
    if device.type != "cpu":
        return None
    return getattr(path, "over_prompts", None)


def set_path(mixer: PackedMixer) -> None:
    """Make the mixer's path anew from its module."""
    mixer.path = path_of(mixer.module)
    mixer.prompt_path = None
    if mixer.path is not None:
        device = next(mixer.module.parameters()).device
        mixer.prompt_path = prompt_path_of(mixer.path, device)


def _has(module: nn.Module, *names: str) -> bool:
    return all(hasattr(module, name) for name in names)
