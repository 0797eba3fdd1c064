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
        return torch.cat([super(ChunkedMLP, self).inner(part) for part in x.split(self.tokens)])
