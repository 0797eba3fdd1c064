"""The parts of a decoder layer as plain callables on [T, hidden]: fused attention and feed-forward. Worker process.

Built from a transformers module whose attributes have the usual names; that the result computes the same is verified
by `tenonry_worker_torch.fuse.verify`, never assumed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from tenonry_torch_base.parallel.layers import RowLinear
from tenonry_worker_torch.fuse.linear import Linear, output_of, side_by_side
from tenonry_worker_torch.fuse.norm import RMSNorm, rms_norm_of
from tenonry_worker_torch.fuse.rope import rotate
from tenonry_worker_torch.loading.stored import StoredLinear

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenonry_torch_base.attention.base import LayerSpec
    from tenonry_torch_base.attention_parts import TurnKernel
    from tenonry_worker_torch.fuse.linear import Packing

    Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


SAMPLES = 64  # numbers that identify an activation
LARGEST = 6.0
RELATIVE = 1e-5


class HeadNorm:
    """Normalisation of every query and key head before rotation, both with one call; `weight` [heads, size]."""

    __slots__ = ("norm", "weight")

    def __init__(self, query: torch.Tensor, key: torch.Tensor, eps: float, spec: LayerSpec) -> None:
        self.norm = RMSNorm(None, spec.key_size, eps)
        weights = [query.expand(spec.num_heads, -1), key.expand(spec.num_kv_heads, -1)]
        self.weight = torch.cat(weights).contiguous()  # float32 for an offset from 1

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        scaled = self.norm(x) * self.weight
        return scaled if scaled.dtype == x.dtype else scaled.to(x.dtype)


class FusedAttention:
    """One projection for query, key and value, rotation of all heads in one operation, and the output projection."""

    def __init__(
        self,
        qkv: Linear,
        out: Linear,
        spec: LayerSpec,
        head_norm: HeadNorm | None,
        attend: Attend,
        gate_order: torch.Tensor | None = None,
    ) -> None:
        """`gate_order` i64[heads]: permutation that moves gates last, if each query head is followed by a gate of its
        output.
        """
        self.qkv = qkv
        self.out = out
        self.spec = spec
        self.head_norm = head_norm
        self.attend = attend
        self.gate_order = gate_order
        self.turn_kernel: TurnKernel | None = None

    def heads(
        self,
        x: torch.Tensor,
        cos: torch.Tensor | None,
        sin: torch.Tensor | None,
        keep: torch.Tensor | None,
    ) -> torch.Tensor:
        """`x` [T, hidden] → attention output [Q, heads · size], not yet projected; `keep` i64[Q] picks the queries."""
        return self.between(self.qkv(x), cos, sin, keep)

    def between(
        self,
        projected: torch.Tensor,
        cos: torch.Tensor | None,
        sin: torch.Tensor | None,
        keep: torch.Tensor | None,
    ) -> torch.Tensor:
        """Compute `heads` from the projected queries, keys and values [T, columns], which are changed."""
        spec = self.spec
        num_heads = spec.num_heads
        num_kv_heads = spec.num_kv_heads
        # Per token the heads of query, key and value lie side by side: [T, num_heads + 2 · num_kv_heads, size].
        every = projected.view(projected.shape[0], -1, spec.key_size)
        if self.gate_order is not None:
            every = every.index_select(1, self.gate_order)
        self.turn(every, cos, sin)
        query = every.narrow(1, 0, num_heads)
        both = every.narrow(1, num_heads, 2 * num_kv_heads)
        if keep is not None:
            query = query.index_select(0, keep)
        key = both.narrow(1, 0, num_kv_heads)
        value = both.narrow(1, num_kv_heads, num_kv_heads)
        attended = self.attend(query, key, value, both)
        if self.gate_order is not None:
            gate = every.narrow(1, num_heads + 2 * num_kv_heads, num_heads)
            if keep is not None:
                gate = gate.index_select(0, keep)
            attended = attended * gate.sigmoid()
        return attended.flatten(1)

    def turn(self, every: torch.Tensor, cos: torch.Tensor | None, sin: torch.Tensor | None) -> None:
        """Norm and rotation, in place, of the first num_heads + num_kv_heads heads of `every` [T, heads, size]."""
        if self.turn_kernel is not None:
            self.turn_kernel(every.flatten(1), cos, sin)
            return
        query_key = every.narrow(1, 0, self.spec.num_heads + self.spec.num_kv_heads)
        normed = query_key if self.head_norm is None else self.head_norm(query_key)
        rotate(normed, cos, sin, out=query_key)

    def pack(self, packing: Packing) -> None:
        """Change the layout of both weights, and free those of the original modules."""
        self.qkv = self.qkv.packed(packing)
        self.out = self.out.packed(packing)


class FusedMLP:
    """Gated feed-forward with one projection for gate and up."""

    def __init__(
        self, gate_up: Linear, down: Linear, activation: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        self.gate_up = gate_up
        self.down = down
        self.activation = activation
        self.gate_kernel: Callable[[torch.Tensor], torch.Tensor] | None = None

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        """[N, hidden] → [N, intermediate]."""
        return self.gated(self.gate_up(x))

    def gated(self, both: torch.Tensor) -> torch.Tensor:
        """Apply concatenated gates: [N, 2 · intermediate] → [N, intermediate]."""
        if self.gate_kernel is not None:
            return self.gate_kernel(both)
        gate, up = both.chunk(2, -1)
        return self.activation(gate).mul_(up)

    def pack(self, packing: Packing) -> None:
        """Change the layout of both weights, and free those of the original modules."""
        self.gate_up = self.gate_up.packed(packing)
        self.down = self.down.packed(packing)


def is_silu(activation: object) -> bool:
    """Return True if it computes x · sigmoid(x), tested on some numbers."""
    x = torch.linspace(-LARGEST, LARGEST, SAMPLES)
    if not callable(activation):
        return False
    if isinstance(activation, nn.SiLU):
        return True
    made = activation(x.clone())
    return torch.allclose(made, functional.silu(x), rtol=RELATIVE, atol=RELATIVE)


def is_linear(module: object) -> bool:
    """Return True for an `nn.Linear` itself, or a stored one; other subclasses may compute something else."""
    return type(module) in (nn.Linear, StoredLinear)


def is_output(module: object) -> bool:
    """A layer that ends a part: an `nn.Linear` itself, or one cut along its inputs."""
    if isinstance(module, RowLinear):
        return not module.splits_input
    return is_linear(module)


def fused_attention(module: nn.Module, spec: LayerSpec, attend: Attend) -> FusedAttention | None:
    """Build fused attention from a module with q_proj/k_proj/v_proj or qkv_proj, o_proj and, optionally, q_norm and
    k_norm per head. If q_proj has twice the necessary outputs, the other half are output gates.
    """
    out = getattr(module, "o_proj", None)
    if not is_output(out) or spec.key_size != spec.value_size:
        return None
    merged = getattr(module, "qkv_proj", None)
    parts = [getattr(module, name, None) for name in ("q_proj", "k_proj", "v_proj")]
    query_size = spec.num_heads * spec.key_size
    kv_size = spec.num_kv_heads * spec.key_size
    sizes = [query_size, kv_size, kv_size]
    if is_linear(merged):
        parts = [merged]
        sizes = [sum(sizes)]
    if not all(map(is_linear, parts)):
        return None
    gate_order = None
    made = [part.out_features for part in parts]
    if made == [2 * query_size, kv_size, kv_size]:
        gate_order = _gates_last(spec).to(out.weight.device)
    elif made != sizes:
        return None
    head_norm = None
    if hasattr(module, "q_norm") or hasattr(module, "k_norm"):
        head_norm = _head_norm(module, spec)
        if head_norm is None:
            return None
    if out.in_features != query_size:
        return None
    return FusedAttention(side_by_side(parts), output_of(out), spec, head_norm, attend, gate_order)


def _gates_last(spec: LayerSpec) -> torch.Tensor:
    """Permutation of heads (query, gate) · num_heads, key and value to query, key, value, gate: i64[heads]."""
    first = 2 * spec.num_heads
    pairs = torch.arange(first).view(-1, 2)
    others = torch.arange(first, first + 2 * spec.num_kv_heads)
    return torch.cat([pairs[:, 0], others, pairs[:, 1]])


def _head_norm(module: nn.Module, spec: LayerSpec) -> HeadNorm | None:
    query = getattr(module, "q_norm", None)
    key = getattr(module, "k_norm", None)
    if not isinstance(query, nn.Module) or not isinstance(key, nn.Module):
        return None
    first = rms_norm_of(query)
    second = rms_norm_of(key)
    if first is None or first.weight is None:
        return None
    if second is None or second.weight is None:
        return None
    sizes = {first.weight.shape[0], second.weight.shape[0]}
    if sizes != {spec.key_size}:
        return None
    if (first.eps, first.is_offset) != (second.eps, second.is_offset):
        return None
    return HeadNorm(first.weight, second.weight, first.eps, spec)


def fused_mlp(module: nn.Module) -> FusedMLP | None:
    """Build a fused MLP from a module with gate_proj/up_proj or gate_up_proj, down_proj and an activation."""
    down = getattr(module, "down_proj", None)
    activation = getattr(module, "act_fn", None) or getattr(module, "activation_fn", None)
    merged = getattr(module, "gate_up_proj", None)
    parts = [getattr(module, name, None) for name in ("gate_proj", "up_proj")]
    if not is_output(down) or not callable(activation):
        return None
    if is_linear(merged):
        parts = [merged]
    elif not all(map(is_linear, parts)):
        return None
    if sum(part.out_features for part in parts) != 2 * down.in_features:
        return None
    return FusedMLP(side_by_side(parts), output_of(down), activation)
