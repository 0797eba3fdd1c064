"""Modules that hold a piece of a layer and communicate with the other ranks. Worker process, any device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from tenonry_torch_base.parallel.groups import TensorGroup


def resized(old: torch.Tensor, shape: list[int]) -> nn.Parameter:
    """Return an empty parameter of another shape, otherwise equal to `old`."""
    empty = torch.empty(shape, dtype=old.dtype, device=old.device)
    return nn.Parameter(empty, requires_grad=False)


class RowLinear(nn.Linear):
    """Holds some input features of a linear layer: partial sums are added over the ranks, then the bias, once.

    With `splits_input` every rank receives the whole input and selects its own features.
    """

    def __init__(self, whole: nn.Linear, group: TensorGroup, *, splits_input: bool) -> None:
        nn.Module.__init__(self)
        self.in_features = whole.in_features // group.size
        self.out_features = whole.out_features
        self.weight = whole.weight
        self.bias = whole.bias
        self.group = group
        self.splits_input = splits_input

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.splits_input:
            begin = self.group.rank * self.in_features
            x = x.narrow(-1, begin, self.in_features)
        out = self.group.sum(functional.linear(x, self.weight))
        return out if self.bias is None else out + self.bias


class GatherLinear(nn.Linear):
    """Holds some output features of a linear layer, and gathers all of them on every rank."""

    def __init__(self, whole: nn.Linear, group: TensorGroup) -> None:
        nn.Module.__init__(self)
        self.in_features = whole.in_features
        self.out_features = whole.out_features
        self.weight = whole.weight
        self.bias = whole.bias
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own = functional.linear(x, self.weight, self.bias)
        every = self.group.gather(own)
        # The last rank's piece may be filled up with zeros.
        return every.narrow(-1, 0, self.out_features)


class VocabularyLookup:
    """The forward pass of an embedding that holds some of the vocabulary: the others' rows are zeros here."""

    def __init__(self, embedding: nn.Embedding, group: TensorGroup) -> None:
        self.look_up = embedding.forward
        self.group = group
        self.size = embedding.weight.shape[0]

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        local = token_ids - self.group.rank * self.size
        is_here = (local >= 0) & (local < self.size)
        found = self.look_up(local.clamp(0, self.size - 1))
        own = found.masked_fill(~is_here[..., None], 0.0)
        return self.group.sum(own)


class SumOutput:
    """A forward hook: sums a module's partial results over the ranks."""

    def __init__(self, group: TensorGroup) -> None:
        self.group = group

    def __call__(self, _module: nn.Module, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return self.group.sum(output)
