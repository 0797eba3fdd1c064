"""The selective state space of Mamba 2 (arXiv:2405.21060), one token per row. Worker process.

Per row and head with the state S [size, state], step Δ: S ← exp(Δ·A)·S + Δ·x ⊗ B, and the output is S·C + D·x. Where
x, B and C come from is a short convolution; the output is gated and normalised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from tenonry_worker_torch.fuse.mixers.projection import (
    decay_rate_of,
    input_projection,
    output_projection,
    plain,
)
from tenonry_worker_torch.fuse.mixers.window import window_of
from tenonry_worker_torch.state.layer_cache import CONVOLUTION, RECURRENT, StateKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tenonry_worker_torch.fuse.mixers.projection import Projection
    from tenonry_worker_torch.fuse.mixers.window import Window

WINDOW = StateKey(CONVOLUTION, 0)
MATRIX = StateKey(RECURRENT, 0)


class GatedNorm:
    """`x` [R, size] → normalised in groups, and gated before or after that. Without a weight it only gates."""

    def __init__(self, module: Any) -> None:
        self.num_groups = 1
        self.weight = None
        self.eps = 0.0
        self.gates_last = True
        if not isinstance(module, nn.Identity):
            self.weight = plain(module.weight)
            self.num_groups = _groups_of(module)
            self.eps = module.variance_epsilon
            self.gates_last = getattr(module, "norm_before_gate", False)

    def __call__(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        gate = functional.silu(gate.float())
        if not self.gates_last:
            x = x * gate
        if self.weight is not None:
            groups = x.view(len(x), self.num_groups, -1)
            x = torch.rms_norm(groups, groups.shape[-1:], None, self.eps)
            x = x.view(gate.shape) * self.weight
        return x * gate if self.gates_last else x


class SelectiveScan:
    """A path (see `tenonry_worker_torch.state.mixer.DecodePath`) from the parameters of a module.

    `scale` [columns]: factors of the projected columns, None for 1.
    """

    def __init__(
        self, module: Any, projection: Projection, window: Window, norm: GatedNorm, out: Projection
    ) -> None:
        self.projection = projection
        self.scale = _scale_of(module)
        self.window = window
        self.norm = norm
        self.out = out
        self.num_groups = module.n_groups
        self.num_heads = module.num_heads
        self.head_size = module.head_dim
        self.state_size = module.ssm_state_size
        size = self.num_heads * self.head_size
        grouped = self.num_groups * self.state_size
        self.channels = (size, grouped, grouped)
        self.columns = (size, sum(self.channels), self.num_heads)
        self.decay_rate = decay_rate_of(module)
        self.step_bias = plain(module.dt_bias)
        self.skip = plain(module.D)[:, None]

    def __call__(self, x: torch.Tensor, states: Mapping[StateKey, torch.Tensor]) -> torch.Tensor:
        """`x` [R, hidden] → [R, hidden]; changes the states of these rows."""
        projected = self.projection(x)
        if self.scale is not None:
            projected = projected * self.scale
        gate, mixed, step = projected.split(self.columns, 1)
        mixed = self.window(mixed, states[WINDOW])
        value, inward, outward = mixed.split(self.channels, 1)
        value = value.view(-1, self.num_heads, self.head_size)
        step = functional.softplus(step.float() + self.step_bias)
        decay = step * self.decay_rate
        made = self._scan(
            states[MATRIX],
            value * step.unsqueeze(-1),
            decay.exp_()[..., None, None],
            inward,
            outward,
        )
        made = made.view(value.shape)
        made.addcmul_(value, self.skip)
        normed = self.norm(made.view(len(x), -1), gate)
        return self.out(normed.to(x.dtype))

    def _scan(
        self,
        matrix: torch.Tensor,
        value: torch.Tensor,
        decay: torch.Tensor,
        inward: torch.Tensor,
        outward: torch.Tensor,
    ) -> torch.Tensor:
        """`matrix` [R, heads, size, state] is changed; heads of a group share B (`inward`) and C (`outward`)."""
        groups = len(matrix) * self.num_groups
        state = matrix if matrix.dtype == torch.float32 else matrix.float()
        state.mul_(decay)
        grouped = state.view(groups, -1, self.state_size)
        inward = inward.reshape(groups, 1, self.state_size)
        grouped.addcmul_(value.view(groups, -1, 1), inward)
        if state is not matrix:
            matrix.copy_(state)
        return grouped @ outward.reshape(groups, self.state_size, 1)


def _groups_of(norm: Any) -> int:
    """Number of groups normalised separately by a gated norm; one if it declares none."""
    if hasattr(norm, "group_size"):
        return len(norm.weight) // int(norm.group_size)
    return int(getattr(norm, "n_groups", 1))


def _scale_of(module: Any) -> torch.Tensor | None:
    """Multipliers of Falcon-H1: one of the input, and one per column."""
    if not hasattr(module, "mup_vector"):
        return None
    scale: torch.Tensor = module.mup_vector.detach()
    return scale.flatten() * module.ssm_in_multiplier


def selective_scan(module: Any) -> SelectiveScan | None:
    """Build the path from a module with in_proj, conv1d, A_log, D, dt_bias, norm and out_proj; its state is [heads,
    size, state].
    """
    window = window_of(module.conv1d, module.activation)
    projection = input_projection([module.in_proj])
    out = output_projection(module.out_proj)
    if window is None or projection is None or out is None:
        return None
    norm = GatedNorm(module.norm)
    return SelectiveScan(module, projection, window, norm, out)
