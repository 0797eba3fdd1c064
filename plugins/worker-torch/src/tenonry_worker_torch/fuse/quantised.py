"""Quantised matrices instead of those of the fused layers: from a checkpoint, or quantised at load. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from tenonry.errors import ModelError
from tenonry_torch_base.low_bit import LowBitWeight, matrix_of
from tenonry_torch_base.quantisations import QuantisedLinear, QuantisedWeight
from tenonry_worker_torch.fuse.block import FusedAttention, FusedMLP
from tenonry_worker_torch.fuse.linear import merged_bias, take_weight
from tenonry_worker_torch.loading.quantised import STORED_WEIGHT
from tenonry_worker_torch.loading.stored import StoredLinear

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from tenonry_torch_base.quantisations import Quantisation
    from tenonry_worker_torch.fuse.decoder import FusedForward
    from tenonry_worker_torch.fuse.linear import DenseLinear, Linear, PartedLinear

    Stored = QuantisedWeight | LowBitWeight


class MatrixKernels(Protocol):
    """Kernels of quantised matrices, used instead of a quantisation's own layers."""

    def layer(self, weight: Stored, bias: torch.Tensor | None) -> QuantisedLinear | None:
        """Return the layer of a matrix; None to leave it to the quantisation."""
        ...


class QuantisedPacking:
    """Packing of one model; floats remain unchanged.

    `num_layers` and `num_bytes`: number and size of the quantised matrices, `layers`: the layers of all of them.
    """

    def __init__(
        self, quantisation: Quantisation, dtype: torch.dtype, kernels: MatrixKernels | None = None
    ) -> None:
        """`kernels`: for layers that are faster with one."""
        self.kernels = kernels
        self.quantisation = quantisation
        self.dtype = dtype
        self.is_at_load = quantisation.config is None
        self.layers: list[QuantisedLinear] = []
        self.num_layers = 0
        self.num_bytes = 0
        self.num_left = 0

    def dense(self, linear: DenseLinear) -> Linear:
        weights = self._stored(linear.sources)
        if self.is_at_load:
            weights = [self.quantisation.quantise(linear.weight)]
        return self._linear(weights, linear.bias, linear.sources) or linear

    def parted(self, linear: PartedLinear) -> Linear:
        sources = linear.sources
        weights = self._stored(sources)
        if self.is_at_load:
            weights = [self.quantisation.quantise(part.weight.detach()) for part in sources]
        return self._linear(weights, merged_bias(sources), sources) or linear

    def module(self, _linear: nn.Linear) -> None:
        return None

    def _stored(self, sources: Sequence[nn.Linear]) -> list[Stored]:
        """Stored matrices of all sources; none if one has floats."""
        laid_out = [each.stored for each in sources if isinstance(each, StoredLinear)]
        found = [vars(module).pop(STORED_WEIGHT, None) for module in sources]
        on_device = [
            weight.to(module.weight.device)
            for weight, module in zip(found, sources, strict=True)
            if weight is not None
        ]
        weights = [*laid_out, *on_device]
        return weights if len(weights) == len(found) else []

    def _linear(
        self, weights: list[Stored], bias: torch.Tensor | None, sources: Sequence[nn.Linear]
    ) -> Linear | None:
        """Return the linear layer over all matrices, concatenated; None to keep floats."""
        if not weights:
            return self._left(sources)
        whole = _side_by_side(weights)
        layers = self._layers([whole], [bias])
        if whole is None:
            sizes = [weight.shape[0] for weight in weights]
            layers = self._layers(
                weights, [None] * len(sizes) if bias is None else bias.split(sizes)
            )
        if not layers:
            return self._left(sources)
        for module in sources:
            take_weight(module)
        self.layers += layers
        self.num_layers += 1
        self.num_bytes += sum(weight.num_bytes for weight in weights)
        return layers[0] if len(layers) == 1 else SideBySide(layers)

    def _left(self, sources: Sequence[nn.Linear]) -> None:
        """Leave layers as floats."""
        self.num_left += 1
        for module in sources:
            if isinstance(module, StoredLinear):
                module.to_floats()

    def _layers(
        self, weights: Sequence[Stored | None], biases: Sequence[torch.Tensor | None]
    ) -> list[QuantisedLinear]:
        """Return one layer each; none if one keeps floats. Layouts cannot hold inference tensors."""
        with torch.inference_mode(False), torch.no_grad():
            found = [
                None if weight is None else self._layer(weight, bias)
                for weight, bias in zip(weights, biases, strict=True)
            ]
        layers = [layer for layer in found if layer is not None]
        return layers if len(layers) == len(found) else []

    def _layer(self, weight: Stored, bias: torch.Tensor | None) -> QuantisedLinear | None:
        made = None if self.kernels is None else self.kernels.layer(weight, bias)
        return made or self.quantisation.linear(matrix_of(weight), bias, self.dtype)

    @property
    def text(self) -> str:
        """Summary for the log."""
        left = f", {self.num_left} others as floats" if self.num_left else ""
        return f"{self.num_layers} matrices in {self.num_bytes / 1e9:.3g} GB{left}"


def _side_by_side(weights: Sequence[Stored]) -> Stored | None:
    """Concatenated outputs; None if the matrices are too different."""
    laid_out = [weight for weight in weights if isinstance(weight, LowBitWeight)]
    whole = LowBitWeight.side_by_side(laid_out) if len(laid_out) == len(weights) else None
    return whole or QuantisedWeight.side_by_side([matrix_of(weight) for weight in weights])


class SideBySide(QuantisedLinear):
    """Layers that read the same input and are too different to be one."""

    def __init__(self, layers: Sequence[QuantisedLinear]) -> None:
        self.layers = layers

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([layer(x) for layer in self.layers], 1)


def refuse_others(fused: FusedForward | None, architecture: str, name: str) -> None:
    """Raise ModelError for a model that would remain mostly unquantised."""
    if fused is None:
        raise ModelError(
            f"quantization={name}: {architecture} runs its own code, not the layers that worker 'torch' can quantise; "
            "leave --quantization out"
        )
    for number, layer in enumerate(fused.layers):
        if not isinstance(layer.attention, FusedAttention):
            raise ModelError(
                f"quantization={name}: layer {number} of {architecture} keeps state instead of attention, which "
                "worker 'torch' cannot quantise; leave --quantization out"
            )
        if not isinstance(layer.mlp, FusedMLP):
            raise ModelError(
                f"quantization={name}: the feed-forward part of layer {number} of {architecture} is a "
                f"{type(layer.mlp).__name__}, which worker 'torch' cannot quantise; leave --quantization out"
            )
