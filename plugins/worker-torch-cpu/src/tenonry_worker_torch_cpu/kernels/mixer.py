"""The gated delta rule of decoding rows with a kernel between its projections. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tenonry_torch_base.step_kernels import DeltaRuleParts
from tenonry_worker_torch.fuse.mixers.delta_rule import MATRIX, UNIT_EPS, WINDOW, DeltaRule
from tenonry_worker_torch.state.mixer import RowPath
from tenonry_worker_torch_cpu.kernels.trial import Candidates

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tenonry_torch_base.step_kernels import DeltaRuleKernel
    from tenonry_worker_torch.state.layer_cache import StateKey
    from tenonry_worker_torch.state.mixer import PackedMixer


class KernelDeltaRule(RowPath):
    """A path that updates the states in place. `own`: the path of built-in operations, used for prompts."""

    def __init__(self, own: DeltaRule, kernel: DeltaRuleKernel) -> None:
        self.own = own
        self.kernel = kernel
        self.over_prompts = own.over_prompts

    def __call__(self, x: torch.Tensor, states: Mapping[StateKey, torch.Tensor]) -> torch.Tensor:
        return self.over_rows(x, states, None)

    def over_rows(
        self, x: torch.Tensor, states: Mapping[StateKey, torch.Tensor], rows: torch.Tensor | None
    ) -> torch.Tensor:
        made = self.kernel(self.own.projection(x), states[WINDOW], states[MATRIX], rows)
        return self.own.out(made)


def delta_rule_parts(path: DeltaRule) -> DeltaRuleParts | None:
    """Return the parts; None for another convolution."""
    window = path.window
    if window.activation is not torch.nn.functional.silu:
        return None
    return DeltaRuleParts(
        key_heads=path.num_key_heads,
        heads=path.num_heads,
        key_size=path.key_size,
        value_size=path.value_size,
        order=path.order,
        window_weight=window.weight,
        window_bias=window.bias,
        decay_rate=path.decay_rate,
        decay_bias=path.decay_bias,
        norm_weight=path.norm_weight,
        norm_eps=path.norm_eps,
        unit_eps=UNIT_EPS,
    )


def random_states(mixer: PackedMixer, count: int) -> dict[StateKey, torch.Tensor]:
    """States of `count` rows, far from zero, as after a prompt."""
    states = {}
    for key, shape in mixer.state.shapes.items():
        sizes = shape.shape[::-1] if key == WINDOW else shape.shape
        drawn = torch.randn(count, *sizes)
        states[key] = drawn.transpose(1, 2) if key == WINDOW else drawn
    return states


def candidates(
    mixer: PackedMixer, own: DeltaRule, kernel: KernelDeltaRule, count: int
) -> Candidates:
    """Both over `count` random rows, with random states."""
    x = torch.randn(count, mixer.hidden_size)
    states = random_states(mixer, count)
    others = {key: state.clone() for key, state in states.items()}
    return Candidates(
        lambda: (own(x, states), *states.values()), lambda: (kernel(x, others), *others.values())
    )
