"""The short causal convolution of a mixer, one token per row, over the window that the row keeps. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from tenonry_worker_torch.fuse.mixers.projection import plain

if TYPE_CHECKING:
    from collections.abc import Callable

    Activation = Callable[[torch.Tensor], torch.Tensor]


class Window:
    """Convolution over the last K inputs of each channel, in float32: `weight` [K, C], `bias` [C].

    It is fast if channels are contiguous in memory, as in `PackedMixer`.
    """

    __slots__ = ("activation", "bias", "weight")

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, activation: Activation | None
    ) -> None:
        self.weight = weight
        self.bias = bias
        self.activation = activation

    def __call__(self, x: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
        """`x` [R, C] → float32 [R, C]; `window` [R, C, K] moves on by one."""
        inputs = window.transpose(1, 2)
        earlier = inputs.narrow(1, 1, inputs.shape[1] - 1)
        moved = torch.cat((earlier, x.unsqueeze(1)), 1)
        inputs.copy_(moved)
        out = (moved * self.weight).sum(1)
        if self.bias is not None:
            out.add_(self.bias)
        return out if self.activation is None else self.activation(out)

    def over_prompts(
        self, x: torch.Tensor, window: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`x` [B, L, C], on top of `window` [B, C, K] or of nothing → float32 [B, L, C], and the window after it."""
        width = len(self.weight)
        if window is None:
            earlier = x.new_zeros(len(x), width, x.shape[2])
        else:
            earlier = window.transpose(1, 2)
        inputs = torch.cat((earlier, x), 1)
        length = x.shape[1]
        out = inputs.narrow(1, 1, length) * self.weight[0]
        for place in range(1, width):
            out.addcmul_(inputs.narrow(1, place + 1, length).float(), self.weight[place])
        if self.bias is not None:
            out.add_(self.bias)
        after = inputs.narrow(1, length, width).transpose(1, 2)
        return out if self.activation is None else self.activation(out), after


def window_of(convolution: nn.Module | None, activation: str | None) -> Window | None:
    """Build it from a depthwise `nn.Conv1d` with an `activation`; None for another one."""
    if type(convolution) is not nn.Conv1d:
        return None
    weight = plain(convolution.weight)
    channels, per_group, _ = weight.shape
    if per_group != 1 or convolution.in_channels != channels:
        return None
    bias = None
    if convolution.bias is not None:
        bias = plain(convolution.bias)
    function = None
    if activation is not None:
        function = activation_of(activation)
        if function is None:
            return None
    return Window(weight[:, 0].t().contiguous(), bias, function)


def activation_of(name: str) -> Activation | None:
    """Return an activation function of transformers by its name; None for an unknown name."""
    from transformers.activations import ACT2FN

    if name in ("silu", "swish"):
        return functional.silu
    if name in ACT2FN:
        return ACT2FN[name]
    return None
