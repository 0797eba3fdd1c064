"""Root-mean-square normalisation (arXiv:1910.07467) in few operations. Worker process, any device.

On the CPU torch composes it from eight; a handful of rows is faster through the fused layer norm, by a trick: the mean
of [x, −x] is zero and its variance is the mean square of x.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from tenonry_torch_base.seeded import seeded

if TYPE_CHECKING:
    from torch import nn

FEW_ROWS = 16
_tried: dict[
    tuple[object, ...], bool | None
] = {}  # kind of module → True if its weight is an offset from 1


class RMSNorm:
    """`x` [..., H] → x / √(mean(x²) + eps) · weight, over the last dimension.

    `weight` None leaves the scaling to the caller. `is_offset`: the stored weight is an offset from 1 and is applied in
    float32 before rounding (Gemma); otherwise rounding comes first, as in Llama.
    """

    __slots__ = ("_doubled", "_size", "eps", "is_offset", "weight")

    def __init__(
        self, weight: torch.Tensor | None, size: int, eps: float, *, is_offset: bool = False
    ) -> None:
        self._size = size
        self.eps = eps
        self.is_offset = is_offset
        if weight is not None and is_offset:
            weight = 1.0 + weight.float()
        self.weight = weight
        self._doubled = None
        if weight is not None:
            zeros = torch.zeros_like(weight)
            self._doubled = torch.cat([weight, zeros])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type != "cpu":
            return self._on_device(x)
        if x.numel() <= FEW_ROWS * self._size:
            return self._few(x)
        values = x.float()
        scale = torch.linalg.vector_norm(values, 2, -1, keepdim=True)
        scale.square_()
        scale.mul_(1.0 / self._size)
        scale.add_(self.eps)
        scale.rsqrt_()
        if values is x:
            values = x * scale
        else:
            values.mul_(scale)
        return self._weighted(values, x.dtype)

    def _few(self, x: torch.Tensor) -> torch.Tensor:
        both = torch.cat((x, x.neg()), -1)
        if self.is_offset and x.dtype != torch.float32:
            both = both.float()
        normed = torch.layer_norm(both, (2 * self._size,), self._doubled, None, self.eps)
        normed = normed.narrow(-1, 0, self._size)
        return normed if normed.dtype == x.dtype else normed.to(x.dtype)

    def _weighted(self, values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if self.weight is None:
            return values.to(dtype)
        if self.is_offset:
            return values.mul_(self.weight).to(dtype)
        return values.to(dtype).mul_(self.weight)

    def _on_device(self, x: torch.Tensor) -> torch.Tensor:
        shape = (self._size,)
        if not self.is_offset:
            return functional.rms_norm(x, shape, self.weight, self.eps)
        normed = functional.rms_norm(x.float(), shape, self.weight, self.eps)
        return normed.to(x.dtype)


def rms_norm_of(module: nn.Module, *, with_weight: bool = True) -> RMSNorm | None:
    """An RMSNorm equivalent to the module, verified on random input; None if it is something else.

    Modules that differ only in their weights are tried once per process.
    """
    eps = getattr(module, "variance_epsilon", None) or getattr(module, "eps", None)
    weight = getattr(module, "weight", None)
    if (
        eps is None
        or not isinstance(weight, torch.Tensor)
        or weight.dim() != 1
        or _bias_of(module) is not None
    ):
        return None
    kind = _kind_of(module)
    if kind is None or kind not in _tried:
        is_offset = _tried_offset(module, float(eps))
        if kind is not None:
            _tried[kind] = is_offset
    else:
        is_offset = _tried[kind]
    if is_offset is None:
        return None
    own = weight.detach() if with_weight else None
    return RMSNorm(own, weight.shape[0], float(eps), is_offset=is_offset)


def _kind_of(module: nn.Module) -> tuple[object, ...] | None:
    """Key that is equal for modules that differ only in one weight; None for modules with further attributes."""
    has_more = any(
        (
            "forward" in vars(module),
            module._forward_hooks,  # noqa: SLF001 - there is no public attribute
            module._forward_pre_hooks,  # noqa: SLF001
            module._buffers,  # noqa: SLF001
            module._modules,  # noqa: SLF001
            len(module._parameters) > 1,  # noqa: SLF001
        )
    )
    settings = [(name, value) for name, value in vars(module).items() if not name.startswith("_")]
    if has_more or not all(isinstance(value, int | float | str) for _, value in settings):
        return None
    return (type(module), type(module).forward, module.weight.shape, *settings)


def _tried_offset(module: nn.Module, eps: float) -> bool | None:
    """Return True if the module's weight is an offset from 1; None if it is no RMSNorm.

    Compared in float32 on random input and a random weight, instead of the module's own.
    """
    weight: torch.Tensor = module.weight  # type: ignore[assignment] - looked at before
    size = weight.shape[0]
    with seeded(0), torch.no_grad():
        sample = torch.randn(3, size) * 3
        other = torch.rand(size) + 0.5
        kept = weight.data
        try:
            weight.data = other
            wanted = module(sample)
        finally:
            weight.data = kept
    for is_offset in (False, True):
        got = RMSNorm(other, size, eps, is_offset=is_offset)(sample)
        if got.shape != wanted.shape:
            continue
        if torch.allclose(got, wanted, rtol=1e-4, atol=1e-5):
            return is_offset
    return None


def _bias_of(module: nn.Module) -> torch.Tensor | None:
    return getattr(module, "bias", None)
