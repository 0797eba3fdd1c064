"""Step kernels `torch-kernels`: the norm and the gated delta rule in torch. Worker process."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch.nn import functional

from tenonry_torch_base.kernel_parts import NormParts
from tenonry_torch_base.step_kernels import DeltaRuleParts, StepKernels, makes


class Norm:
    """RMS norm of one layer: x / √(mean(x²) + eps) · weight."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight = weight.float()
        self.eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.rms_norm(x, self.weight.shape, self.weight, self.eps)


class DeltaRule:
    """One token of each row through a gated delta rule; its formula is in `DeltaRuleKernel`."""

    def __init__(self, parts: DeltaRuleParts) -> None:
        self.parts = parts

    def __call__(
        self,
        projected: torch.Tensor,
        window: torch.Tensor,
        matrix: torch.Tensor,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        parts = self.parts
        if rows is None:
            rows = torch.arange(len(projected))
        if parts.order is not None:
            projected = projected[:, parts.order]
        values = parts.heads * parts.value_size
        widths = [parts.channels, values, parts.heads, parts.heads]
        new, gate, rate, decay = projected.split(widths, 1)
        query, key, value = self.convolved(new, window, rows)
        steps = functional.softplus(decay + parts.decay_bias) * parts.decay_rate
        state = matrix[rows] * steps.exp()[:, :, None, None]
        known = (state * key[..., None]).sum(2)
        change = (value.unflatten(1, (parts.heads, -1)) - known) * rate.sigmoid()[..., None]
        state = state + key[..., None] * change[:, :, None]
        matrix[rows] = state
        made = (state * query[..., None]).sum(2)
        made = torch.rms_norm(made, parts.norm_weight.shape, parts.norm_weight, parts.norm_eps)
        return made.flatten(1) * functional.silu(gate)

    def convolved(
        self, new: torch.Tensor, window: torch.Tensor, rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Move the windows on by the new inputs; returns query, key and value."""
        parts = self.parts
        inputs = torch.cat([window[rows][:, :, 1:], new[:, :, None]], 2)
        window[rows] = inputs
        mixed = (inputs * parts.window_weight.t()).sum(2)
        if parts.window_bias is not None:
            mixed = mixed + parts.window_bias
        keys, values = parts.key_heads * parts.key_size, parts.heads * parts.value_size
        query, key, value = functional.silu(mixed).split([keys, keys, values], 1)
        return self.unit(query) * parts.key_size**-0.5, self.unit(key), value

    def unit(self, vectors: torch.Tensor) -> torch.Tensor:
        """Vectors of length one, per head."""
        parts = self.parts
        heads = vectors.unflatten(1, (parts.key_heads, -1))
        heads = heads / (heads.square().sum(-1, keepdim=True) + parts.unit_eps).sqrt()
        return heads.repeat_interleave(parts.heads // parts.key_heads, 1)


class TorchKernels(StepKernels):
    """Offers two kernels; parts that no method makes stay with the worker."""

    interface_version = 1
    name: ClassVar[str] = "torch-kernels"

    @classmethod
    def refusal(cls) -> str | None:
        return None

    @makes(NormParts)
    def norm(self, parts: NormParts) -> Norm:
        return Norm(parts.weight, parts.eps)

    @makes(DeltaRuleParts)
    def delta_rule(self, parts: DeltaRuleParts) -> DeltaRule:
        return DeltaRule(parts)
