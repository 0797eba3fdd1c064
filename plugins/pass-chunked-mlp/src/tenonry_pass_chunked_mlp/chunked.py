"""The feed-forward part that the pass puts into layers. Worker process."""

from __future__ import annotations

import torch

from tenonry_worker_torch.fuse.block import FusedMLP


class ChunkedMLP(FusedMLP):
    """Computes gate and up, 2 · intermediate numbers per token, for at most `tokens` tokens at a time."""

    def __init__(self, mlp: FusedMLP, tokens: int) -> None:
        super().__init__(mlp.gate_up, mlp.down, mlp.activation)
        self.gate_kernel = mlp.gate_kernel
        self.tokens = tokens

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) <= self.tokens:
            return super().inner(x)
        first = super().inner(x[: self.tokens])
        made = first.new_empty(len(x), first.shape[1])
        made[: self.tokens] = first
        for begin in range(self.tokens, len(x), self.tokens):
            part = slice(begin, begin + self.tokens)
            made[part] = super().inner(x[part])
        return made
