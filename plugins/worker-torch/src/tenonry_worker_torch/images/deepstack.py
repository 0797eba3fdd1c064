"""Images that are also added to the hidden states of the first layers. Worker process.

The text part of such a model takes `deepstack_visual_embeds` [layers, tokens of images, H], and adds those of layer i
to the output of layer i (DeepStack, https://arxiv.org/abs/2406.04334). Its wrapper does not accept them from outside,
so hooks of the layers do the same over the tokens of a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn


class Deepstack:
    """Deepstack features of one model. `added` [layers, T, H] is for the step's T tokens, zeros outside of images; None
    without images.
    """

    def __init__(self, layers: list[nn.Module]) -> None:
        self.added: torch.Tensor | None = None
        self._num_layers = len(layers)
        for number, layer in enumerate(layers):
            layer.register_forward_hook(_Adder(self, number))

    def take(self, seen: torch.Tensor, tokens: torch.Tensor, num_tokens: int) -> torch.Tensor:
        """Record an image's encoding, [n, 1 + layers, H], for `tokens` i64[n] of the step's `num_tokens`.

        Returns the embeddings [n, H] that replace those of the tokens.
        """
        if self.added is None:
            self.added = seen.new_zeros(self._num_layers, num_tokens, seen.shape[-1])
        deep = seen[
            :, 1 : 1 + self._num_layers
        ]  # a text part with fewer layers uses the first ones
        self.added[:, tokens] = deep.transpose(0, 1)
        return seen[:, 0]


class _Adder:
    """A forward hook of layer `number`."""

    def __init__(self, deepstack: Deepstack, number: int) -> None:
        self._deepstack = deepstack
        self._number = number

    def __call__(self, _module: nn.Module, _inputs: Any, hidden: torch.Tensor) -> torch.Tensor:
        added = self._deepstack.added
        return hidden if added is None else hidden + added[self._number]
