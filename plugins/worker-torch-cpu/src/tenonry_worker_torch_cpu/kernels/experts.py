"""The feed-forward half of a fused layer with small experts, by a kernel. Worker process."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from tenonry_torch_base.step_kernels import ExpertParts
from tenonry_worker_torch.fuse.block import is_linear
from tenonry_worker_torch_cpu.kernels.trial import Candidates

if TYPE_CHECKING:
    from torch import nn

    from tenonry_worker_torch.fuse.layer import FusedLayer

SHARED = ("shared_expert", "shared_expert_gate")
PARTS = ("gate", "experts", *SHARED)


def expert_parts(layer: FusedLayer) -> ExpertParts | None:
    """Return parts by their names in Qwen's modules; None for another shape. A separate trial compares the results."""
    module: Any = layer.mlp
    norm = layer.before_mlp
    if norm is None or norm.weight is None or layer.after_mlp is not None:
        return None
    names = (
        {name for name, _ in module.named_children()}
        if isinstance(module, torch.nn.Module)
        else set()
    )
    if not {"gate", "experts"} <= names or not names <= set(PARTS):
        return None
    router = module.gate
    experts = module.experts
    chosen = getattr(router, "top_k", None)
    if chosen is None or {name for name, _ in router.named_parameters()} != {"weight"}:
        return None
    if {name for name, _ in experts.named_parameters()} != {"gate_up_proj", "down_proj"}:
        return None
    shared = _shared(module) if SHARED[0] in names else {}
    if shared is None:
        return None
    return ExpertParts(
        norm_weight=norm.weight,
        norm_eps=norm.eps,
        router=router.weight.detach(),
        chosen=int(chosen),
        is_normalised=bool(getattr(router, "norm_topk_prob", False)),
        gate_up=experts.gate_up_proj.detach(),
        down=experts.down_proj.detach(),
        **shared,
    )


def _shared(module: Any) -> dict[str, torch.Tensor] | None:
    """Return tensors of the shared expert by their names in `ExpertParts`; None for another shape."""
    expert = module.shared_expert
    parts = [getattr(expert, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    if not all(is_linear(part) and part.bias is None for part in parts):
        return None
    gate, up, down = (part.weight.detach() for part in parts)
    found = {"shared_gate_up": torch.cat([gate, up]), "shared_down": down}
    opening: nn.Linear | None = getattr(module, SHARED[1], None)
    if opening is not None:
        if not is_linear(opening) or opening.bias is not None or opening.out_features != 1:
            return None
        found["shared_gate"] = opening.weight.detach()[0].contiguous()
    return found


def candidates(layer: FusedLayer, kernel: Any, count: int) -> Candidates:
    """Both over `count` random tokens. Their own scale does not matter, since they are normalised."""
    hidden = torch.randn(count, len(layer.before_mlp.weight))
    own = copy.copy(layer)
    own.feed_forward_kernel = None
    return Candidates(lambda: (own.feed_forward(hidden),), lambda: (kernel(hidden),))
