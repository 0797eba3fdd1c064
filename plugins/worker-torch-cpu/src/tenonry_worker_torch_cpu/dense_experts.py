"""Experts so small that computing all of them for every token costs less than sorting tokens by expert. Worker process.

The module's own code looks up which tokens go to which expert, which is some twenty operations. For a few tokens and
small experts, two matrix products over all experts and a weight of zero for those that were not chosen are faster.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from tenonry_torch_base.seeded import seeded
from tenonry_worker_torch.fuse.trial import is_same, random_copy

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenonry_worker_torch.changes import Changes

# Multiplications and additions that may be wasted on unchosen experts: about the cost of twenty operations.
MAX_WASTE = 2_000_000
ARGUMENTS = ["hidden_states", "top_k_index", "top_k_weights"]
TRIAL_TOKENS = 7


class DenseExperts:
    """Replaces the forward of a module with `gate_up_proj` [E, 2·I, H] and `down_proj` [E, H, I] on the instance.

    `down` [H, E·I] is a copy of `down_proj`, which is small.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self.own_code: Callable[..., torch.Tensor] = module.forward
        self.num_experts, self.hidden, self.inner = module.down_proj.shape
        self.gate_up = module.gate_up_proj.detach().flatten(0, 1)
        self.down = module.down_proj.detach().transpose(0, 1).flatten(1)

    def __call__(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """`hidden_states` [T, H]; the experts of each token and their weights [T, k] → [T, H]."""
        num_tokens, chosen = top_k_index.shape
        if num_tokens * self.waste(chosen) > MAX_WASTE:
            return self.own_code(hidden_states, top_k_index, top_k_weights)
        weights = top_k_weights.new_zeros(num_tokens, self.num_experts)
        weights.scatter_(1, top_k_index, top_k_weights)
        made = functional.linear(hidden_states, self.gate_up)
        made = made.view(num_tokens, self.num_experts, -1)
        inner = self.module._apply_gate(made)  # noqa: SLF001 - as transformers' own experts functions do
        inner = inner * weights.unsqueeze(-1)
        return functional.linear(inner.flatten(1).to(made.dtype), self.down)

    def waste(self, chosen: int) -> int:
        """Multiplications and additions per token for experts that were not chosen."""
        return (self.num_experts - chosen) * 6 * self.inner * self.hidden


def use_dense_experts(model: nn.Module, changes: Changes) -> int:
    """Use the dense computation for small experts if it was verified to be the same; returns the number of modules."""
    verdicts: dict[tuple[object, ...], bool] = {}
    count = 0
    for module in model.modules():
        if not _may_be_dense(module):
            continue
        kind = (type(module), *(weight.shape for weight in module.parameters()))
        if kind not in verdicts:
            verdicts[kind] = _agrees(module)
        if verdicts[kind]:
            changes.set(module, "forward", DenseExperts(module))
            count += 1
    return count


def _may_be_dense(module: Any) -> bool:
    """True for plain gated experts small enough for dense computation of a single token."""
    if not hasattr(module, "gate_up_proj"):  # most modules, without further inspection
        return False
    if {name for name, _ in module.named_parameters()} != {"gate_up_proj", "down_proj"}:
        return False
    if list(inspect.signature(module.forward).parameters) not in (ARGUMENTS, ["args", "kwargs"]):
        return False
    if module.down_proj.dim() != 3 or getattr(module, "is_transposed", True):
        return False
    if module.down_proj.device.type != "cpu" or not hasattr(module, "_apply_gate"):
        return False
    num_experts, hidden, inner = module.down_proj.shape
    if module.gate_up_proj.shape != (num_experts, 2 * inner, hidden):
        return False
    return DenseExperts(module).waste(1) <= MAX_WASTE


def _agrees(module: Any) -> bool:
    """Compare in float32, with random weights, inputs and choices of two experts."""
    with seeded(0), torch.no_grad():
        copied = random_copy(module)
        dense = DenseExperts(copied)
        hidden = torch.randn(TRIAL_TOKENS, dense.hidden)
        scores = torch.rand(TRIAL_TOKENS, dense.num_experts)
        weights, chosen = scores.topk(min(2, dense.num_experts), dim=-1)
        wanted = dense.own_code(hidden, chosen, weights)
        return is_same(dense(hidden, chosen, weights), wanted)
