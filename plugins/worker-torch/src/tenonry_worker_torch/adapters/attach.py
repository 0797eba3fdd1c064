"""Attaches adapters to the layers of a loaded and fused model. Worker process."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from torch import nn

from tenonry_torch_base.parallel.layers import RowLinear
from tenonry_worker_torch.adapters.linear import (
    AddAfter,
    AddedToLayer,
    LowRank,
    Part,
    adapted,
    sources_of,
)
from tenonry_worker_torch.fuse.block import FusedAttention, FusedMLP
from tenonry_worker_torch.fuse.decoder import FusedForward
from tenonry_worker_torch.fuse.generic import PackedModule
from tenonry_worker_torch.fuse.linear import Linear

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

    from tenonry_worker_torch.adapters.registry import Adapters
    from tenonry_worker_torch.fuse.layer import FusedLayer

logger = logging.getLogger("tenonry.worker")


class AdapterKernels(Protocol):
    """Assigns kernels to layers of adapters."""

    def give(self, layer: LowRank, in_features: int) -> None:
        """Assign a kernel to a layer, or none."""
        ...

    @property
    def text(self) -> str:
        """Summary for the log."""
        ...


class AdapterTargets:
    """Wraps fused layers before they are packed, and hooks modules after that: running code receives adapters.

    `kernels`: set by a pass before layers are wrapped; None: torch computes.
    """

    def __init__(self, adapters: Adapters, model: PreTrainedModel) -> None:
        self.kernels: AdapterKernels | None = None
        self._adapters = adapters
        self._model = model
        self._dtype = model.dtype
        self._device = model.device
        self._names = {module: name for name, module in model.named_modules()}
        self._open = set(adapters.targets.by_name)
        self._own_code: list[nn.Module] = [model]  # modules whose own forward pass runs

    @property
    def max_rank(self) -> int:
        """Largest rank of an adapter."""
        return self._adapters.max_rank

    def refuse_inside(self, modules: Sequence[nn.Module]) -> None:
        """Reject adapters of layers with state: their decoding path reads weights without calling the layer."""
        for module in modules:
            for child in module.modules():
                name = self._names.get(child, "")
                self._adapters.targets.refuse(name, f"{name} is in a layer with state")
        self._open &= set(self._adapters.targets.by_name)

    def wrap(self, fused: FusedForward) -> None:
        """Wrap the projections of fused layers."""
        self._own_code = []
        for layer in fused.layers:
            self._wrap_layer(layer)

    def _wrap_layer(self, layer: FusedLayer) -> None:
        attention = layer.attention
        if isinstance(attention, FusedAttention):
            attention.qkv = self._wrapped(attention.qkv)
            attention.out = self._wrapped(attention.out)
        mlp = layer.mlp
        if isinstance(mlp, FusedMLP):
            mlp.gate_up = self._wrapped(mlp.gate_up)
            mlp.down = self._wrapped(mlp.down)
        else:
            self._own_code.append(mlp)

    def added_layers(self, fused: FusedForward) -> list[AddedToLayer]:
        """Adapters within each of the fused layers, for its kernel to add."""
        self._own_code = []
        return [self._added_layer(layer) for layer in fused.layers]

    def _added_layer(self, layer: FusedLayer) -> AddedToLayer:
        linears: list[Linear] = []
        if isinstance(layer.attention, FusedAttention):
            linears += (layer.attention.qkv, layer.attention.out)
        if isinstance(layer.mlp, FusedMLP):
            linears += (layer.mlp.gate_up, layer.mlp.down)
        return AddedToLayer([self._low_rank_of(each) for each in linears], self._adapters.step)

    def _wrapped(self, linear: Linear) -> Linear:
        low_rank = self._low_rank_of(linear)
        return linear if low_rank is None else adapted(linear, low_rank, self._adapters.step)

    def _low_rank_of(self, linear: Linear) -> LowRank | None:
        """Adapter layer of a linear layer; None if no adapter may add to it."""
        parts = []
        begin = 0
        for module in sources_of(linear):
            name = self._names[module]
            if name in self._open:
                parts.append(Part(name, begin, module.out_features))
                self._open.discard(name)
            begin += module.out_features
        return self._slots_of(parts, module.in_features) if parts else None

    def hook(self) -> None:
        """Hook the linear layers of modules whose own code runs; remaining layers accept no adapter."""
        for owner in self._own_code:
            prefix = self._names[owner]
            for inner, module in owner.named_modules():
                name = ".".join(filter(None, (prefix, inner)))
                if name not in self._open or not isinstance(module, nn.Linear | PackedModule):
                    continue
                low_rank = self._slots_of(
                    [Part(name, 0, module.out_features)],
                    module.in_features,
                    is_summed=isinstance(module, RowLinear),
                )
                module.register_forward_hook(AddAfter(low_rank, self._adapters.step))
                self._open.discard(name)
        for name in self._open:
            self._adapters.targets.refuse(name, f"{name} is not run as a layer of its own")

    def log(self) -> None:
        """Log the adapter kernels, if any."""
        if self.kernels is not None:
            logger.info("%s", self.kernels.text)

    def _slots_of(
        self, parts: Sequence[Part], in_features: int, *, is_summed: bool = False
    ) -> LowRank:
        """Return slots; `is_summed`: the result of A is summed over ranks before B is applied, in two steps."""
        made = LowRank(parts, self._adapters.max_loras, self._dtype, self._device)
        if self.kernels is not None and not is_summed:
            self.kernels.give(made, in_features)
        self._adapters.layers.append(made)
        return made
