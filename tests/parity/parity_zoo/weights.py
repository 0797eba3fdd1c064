"""Random weights with which the context decides the next token, so that a wrong cache shows as a wrong token."""

from __future__ import annotations

import torch

from parity_zoo.recipes import Recipe


def fill(model: torch.nn.Module, recipe: Recipe) -> None:
    """Set every parameter, and every stored bias, to a random value. Same seed, same values."""
    generator = torch.Generator().manual_seed(recipe.seed)
    for name, weight in model.named_parameters():
        _fill(name, weight.data, generator, recipe)
    for name, buffer in model.named_buffers():
        if "bias" in name.rpartition(".")[2] and buffer.is_floating_point():
            buffer.data.uniform_(-0.1, 0.1, generator=generator)


def _fill(name: str, weight: torch.Tensor, generator: torch.Generator, recipe: Recipe) -> None:
    if weight.dim() < 2:
        # Scales start at 1, or at 0 where they are offsets from 1; what starts at 0 may also be a bias.
        is_scale = weight.numel() > 0 and float(weight.float().mean()) > 0.5
        bound = 0.3 if is_scale else 0.1
        weight.uniform_(-bound, bound, generator=generator).add_(1.0 if is_scale else 0.0)
    elif "embed" in name or "wte" in name or "wpe" in name:
        weight.normal_(0.0, recipe.embedding_std, generator=generator)
    else:
        weight.normal_(0.0, recipe.gain * weight.shape[-1] ** -0.5, generator=generator)
