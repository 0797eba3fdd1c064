"""Linear layers as plain callables: dense ones, and ones whose weight oneDNN has laid out for itself. Worker process.

On a CPU with bfloat16 arithmetic a prepacked weight halves the time of a single token and saves the reordering of
every call; the residual addition rides along in the same kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import nn
from torch.nn import functional

from tenonry_worker_torch.parallel.layers import RowLinear

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenonry_worker_torch.parallel.groups import TensorGroup


# torch has no public name for these (they are what its own compiler calls); `can_pack` asks whether they are there.
_ONEDNN = torch.ops.mkldnn
PACK_ROWS = 64  # the batch for which oneDNN chooses the layout; it was the best or equal from 1 to 2048 rows


class Linear(Protocol):
    """`x` [N, in] → [N, out]; `add` returns the result plus `other` [N, out]; `packed` the same layer, prepacked."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...

    def add(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor: ...

    def packed(self) -> Linear: ...


class DenseLinear:
    """`weight` [out, in] as the modules `sources` have it."""

    __slots__ = ("bias", "sources", "weight")

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, sources: Sequence[nn.Linear] = ()
    ) -> None:
        self.weight, self.bias, self.sources = weight, bias, sources

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight, self.bias)

    def add(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight, self.bias).add_(other)

    def packed(self) -> PackedLinear:
        """In oneDNN's layout. The modules it came from lose their weights, so that nothing is held twice."""
        made = pack(self.weight, self.bias)
        for module in self.sources:
            module.weight = nn.Parameter(self.weight.new_empty(0), requires_grad=False)
        return made


class PackedLinear:
    """A weight in oneDNN's own layout; the original can be dropped."""

    __slots__ = ("bias", "out_features", "weight")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.out_features = weight.shape[0]
        self.weight = _ONEDNN._reorder_linear_weight(weight.contiguous(), PACK_ROWS)  # noqa: SLF001
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return _ONEDNN._linear_pointwise.default(x, self.weight, self.bias, "none", [], "")  # noqa: SLF001

    def packed(self) -> PackedLinear:
        return self

    def add(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return _ONEDNN._linear_pointwise.binary(x, other, self.weight, self.bias, "add")  # noqa: SLF001


class SummedLinear:
    """A piece of a layer that was cut along its inputs: partial sums are added over the ranks, then the bias, once."""

    __slots__ = ("bias", "group", "piece")

    def __init__(self, piece: Linear, bias: torch.Tensor | None, group: TensorGroup) -> None:
        self.piece, self.bias, self.group = piece, bias, group

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = self.group.sum(self.piece(x))
        return out if self.bias is None else out.add_(self.bias)

    def add(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self(x).add_(other)

    def packed(self) -> SummedLinear:
        return SummedLinear(self.piece.packed(), self.bias, self.group)


class GatheredLinear:
    """A piece of a layer that was cut along its outputs, which every rank needs whole: `size` of them."""

    __slots__ = ("group", "piece", "size")

    def __init__(self, piece: Linear, group: TensorGroup, size: int) -> None:
        self.piece, self.group, self.size = piece, group, size

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.group.gather(self.piece(x)).narrow(-1, 0, self.size)

    def add(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self(x).add_(other)

    def packed(self) -> GatheredLinear:
        return GatheredLinear(self.piece.packed(), self.group, self.size)


class PackedModule(nn.Module):
    """A PackedLinear in the place of an `nn.Linear` of a model that runs its own code."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._packed = pack(
            linear.weight.detach(), None if linear.bias is None else linear.bias.detach()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._packed(x)


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether prepacked weights work here and pay: bfloat16 on a CPU that oneDNN computes it on."""
    return (
        device.type == "cpu"
        and dtype == torch.bfloat16
        and torch.backends.mkldnn.is_available()
        and _ONEDNN._is_mkldnn_bf16_supported()  # noqa: SLF001
        and hasattr(_ONEDNN, "_reorder_linear_weight")
    )


def pack(weight: torch.Tensor, bias: torch.Tensor | None) -> PackedLinear:
    """Pack outside inference mode: inference tensors cannot be kept in oneDNN's layout."""
    with torch.inference_mode(False), torch.no_grad():
        return PackedLinear(weight, bias)


def output_of(module: nn.Linear) -> Linear:
    """A layer that ends an attention or feed-forward part, cut along its inputs or whole."""
    if isinstance(module, RowLinear):
        bias = None if module.bias is None else module.bias.detach()
        return SummedLinear(
            DenseLinear(module.weight.detach(), None, (module,)), bias, module.group
        )
    return merge([module])


def merge(modules: Sequence[nn.Linear]) -> DenseLinear:
    """Linear layers that read the same input as one, their outputs side by side.

    The modules keep working, on views of the merged weight.
    """
    if len(modules) == 1:
        bias = modules[0].bias
        return DenseLinear(
            modules[0].weight.detach(), None if bias is None else bias.detach(), modules
        )
    weight = torch.cat([module.weight.detach() for module in modules])
    begin = 0
    for module in modules:
        module.weight = nn.Parameter(
            weight[begin : begin + module.out_features], requires_grad=False
        )
        begin += module.out_features
    return DenseLinear(weight, _merged_bias(weight, modules), modules)


def _merged_bias(weight: torch.Tensor, modules: Sequence[nn.Linear]) -> torch.Tensor | None:
    if all(module.bias is None for module in modules):
        return None
    return torch.cat(
        [
            weight.new_zeros(module.out_features) if module.bias is None else module.bias.detach()
            for module in modules
        ]
    )
