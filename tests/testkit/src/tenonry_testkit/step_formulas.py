"""Formulas of step kernels, in float64. Test process; needs torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenonry_torch_base.low_rank import LowRankParts, SlotTokens
    from tenonry_torch_base.step_kernels import (
        AttentionParts,
        DeltaRuleParts,
        ExpertParts,
        HalfParts,
        HeldKeys,
    )


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMS norm over the last dimension."""
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def half(
    parts: HalfParts, hidden: torch.Tensor, between: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Compute the first half of a layer; `between`: the part from projected rows to the inputs of `out`."""
    normed = rms_norm(hidden, parts.norm_weight, parts.norm_eps)
    made = between(normed @ parts.projection.double().t())
    return hidden.double() + made @ parts.out.double().t()


def attention(
    parts: AttentionParts,
    projected: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    held: HeldKeys,
) -> torch.Tensor:
    """Compute one token of each row; `held` has tensors in float64, which are changed."""
    heads = projected.double().unflatten(1, (-1, parts.size))
    gates = None
    if parts.is_gated:
        pairs = heads[:, : 2 * parts.heads]
        gates = pairs[:, 1::2]
        heads = torch.cat([pairs[:, 0::2], heads[:, 2 * parts.heads :]], 1)
    query, key, value = turned_heads(parts, heads.flatten(1), cos, sin)
    out = torch.empty_like(query)
    for row, column in enumerate(held.column.tolist()):
        slot, newest = divmod(column, held.slab.shape[3])
        held.slab[0, slot, :, newest] = key[row]
        held.slab[1, slot, :, newest] = value[row]
        block, place = divmod(int(held.places[row]), held.blocks.shape[2])
        held.blocks[block, :, place] = torch.cat([key[row], value[row]])
        keys, values = held.slab[:, slot, :, : newest + 1].repeat_interleave(
            parts.heads // parts.kv_heads, 1
        )
        scores = torch.einsum("hd,htd->ht", query[row], keys) * parts.scaling
        out[row] = torch.einsum("ht,htd->hd", scores.softmax(1), values)
    if gates is not None:
        out = out * gates.sigmoid()
    return out.flatten(1)


def turned_heads(
    parts: AttentionParts, projected: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return queries and keys, normed and rotated, and values: [R, heads, size] each. `projected` has no gates."""
    heads = projected.double().unflatten(1, (-1, parts.size))
    turned, value = heads.split([parts.heads + parts.kv_heads, parts.kv_heads], 1)
    if parts.norm_weight is not None:
        scale = (turned.square().mean(-1, keepdim=True) + parts.norm_eps).sqrt()
        turned = turned / scale * parts.norm_weight.double()
    size = cos.shape[-1]
    first = turned[..., :size]
    first = first * cos.double() + first.roll(size // 2, -1) * sin.double()
    turned = torch.cat([first, turned[..., size:]], -1)
    query, key = turned.split([parts.heads, parts.kv_heads], 1)
    return query, key, value


def delta_rule(
    parts: DeltaRuleParts, projected: torch.Tensor, window: torch.Tensor, matrix: torch.Tensor
) -> torch.Tensor:
    """Compute one token of each row; `window` and `matrix` are float64 and are changed."""
    rows = projected.double()
    if parts.order is not None:
        rows = rows[:, parts.order]
    heads = parts.heads
    keys = parts.key_heads * parts.key_size
    values = heads * parts.value_size
    given, gate, rate, decay = rows.split([parts.channels, values, heads, heads], 1)
    window.copy_(torch.cat([window[:, :, 1:], given[:, :, None]], 2))
    mixed = torch.einsum("rct,tc->rc", window, parts.window_weight.double())
    if parts.window_bias is not None:
        mixed = mixed + parts.window_bias.double()
    query, key, value = functional.silu(mixed).split([keys, keys, values], 1)
    value = value.unflatten(1, (heads, -1))
    query = _unit(query, parts) / parts.key_size**0.5
    key = _unit(key, parts)
    steps = functional.softplus(decay + parts.decay_bias.double()) * parts.decay_rate.double()
    matrix.mul_(steps.exp()[..., None, None])
    known = torch.einsum("rhkv,rhk->rhv", matrix, key)
    change = (value - known) * rate.sigmoid()[..., None]
    matrix.add_(key[..., None] * change[:, :, None])
    made = torch.einsum("rhkv,rhk->rhv", matrix, query)
    made = rms_norm(made, parts.norm_weight, parts.norm_eps)
    return made.flatten(1) * functional.silu(gate)


def _unit(vectors: torch.Tensor, parts: DeltaRuleParts) -> torch.Tensor:
    """Unit vectors [R, heads, key_size], each key head repeated for the value heads that share it."""
    heads = vectors.unflatten(1, (parts.key_heads, -1))
    heads = heads / (heads.square().sum(-1, keepdim=True) + parts.unit_eps).sqrt()
    return heads.repeat_interleave(parts.heads // parts.key_heads, 1)


def experts(parts: ExpertParts, hidden: torch.Tensor) -> torch.Tensor:
    """Add the output of the experts for `hidden`."""
    x = rms_norm(hidden, parts.norm_weight, parts.norm_eps)
    scores = (x @ parts.router.double().t()).softmax(1)
    weights, chosen = scores.topk(parts.chosen, 1)
    if parts.is_normalised:
        weights = weights / weights.sum(1, keepdim=True)
    out = hidden.double()
    for row in range(len(x)):
        for weight, number in zip(weights[row], chosen[row].tolist(), strict=True):
            made = _gated(x[row], parts.gate_up[number], parts.down[number])
            out[row] += weight * made
    if parts.shared_gate_up is not None and parts.shared_down is not None:
        made = _gated(x, parts.shared_gate_up, parts.shared_down)
        if parts.shared_gate is not None:
            made = made * (x @ parts.shared_gate.double()).sigmoid()[:, None]
        out = out + made
    return out


def _gated(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    gate, up = (x @ gate_up.double().t()).chunk(2, -1)
    return (functional.silu(gate) * up) @ down.double().t()


def best_allowed(logits: torch.Tensor, masks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """First largest allowed logit of each row with any set bit, with its index."""
    shifts = torch.arange(32)
    bits = (masks.long()[:, :, None] >> shifts) & 1
    left = logits.double().masked_fill(bits.flatten(1) == 0, float("-inf"))
    best = left.amax(-1)
    is_best = left == best[:, None]
    return is_best.int().argmax(-1), best


def low_rank(
    parts: LowRankParts, x: torch.Tensor, out: torch.Tensor, tokens: SlotTokens
) -> torch.Tensor:
    """Add the output of the adapters for `x` to `out`."""
    made = out.double()
    begin = 0
    for slot, end in enumerate(tokens.ends.tolist()):
        mine = tokens.order[begin:end]
        begin = end
        inner = x[mine].double() @ parts.down[slot].double()
        for number, (up, first) in enumerate(zip(parts.ups, parts.begins, strict=True)):
            rank, size = up[slot].shape
            of_part = inner[:, number * rank : (number + 1) * rank]
            made[mine, first : first + size] += of_part @ up[slot].double()
    return made
