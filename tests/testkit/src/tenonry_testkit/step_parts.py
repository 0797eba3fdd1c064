"""Parts of layers with random weights, and random states, for the conformance suite of step kernels. Test process."""

from __future__ import annotations

from typing import NamedTuple

import torch

from tenonry_torch_base.low_rank import LowRankParts, SlotTokens
from tenonry_torch_base.paged_attention import PagedKeys
from tenonry_torch_base.step_kernels import (
    AttentionParts,
    BlockedWeight,
    DeltaRuleParts,
    ExpertParts,
    HalfParts,
    HeldKeys,
    LayerParts,
)


def random_order(columns: int) -> torch.Tensor:
    """Return a permutation of groups of neighbouring columns, as in grouped projections."""
    cuts = torch.randperm(columns)[: min(columns, 5)].sort().values.tolist()
    pieces = torch.arange(columns).tensor_split(cuts)
    return torch.cat([pieces[place] for place in torch.randperm(len(pieces)).tolist()])


def delta_rule_parts(
    key_heads: int, sharing: int, sizes: tuple[int, int], taps: int, *, is_ordered: bool
) -> DeltaRuleParts:
    """Parts of these shapes, with random weights."""
    heads = key_heads * sharing
    key_size, value_size = sizes
    channels = 2 * key_heads * key_size + heads * value_size
    columns = channels + heads * value_size + 2 * heads
    return DeltaRuleParts(
        key_heads=key_heads,
        heads=heads,
        key_size=key_size,
        value_size=value_size,
        order=random_order(columns) if is_ordered else None,
        window_weight=torch.randn(taps, channels),
        window_bias=torch.randn(channels) if is_ordered else None,
        decay_rate=-torch.rand(heads) * 4,
        decay_bias=torch.randn(heads),
        norm_weight=torch.randn(value_size),
        norm_eps=1e-6,
        unit_eps=1e-6,
    )


def states_of(parts: DeltaRuleParts, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Windows whose channels are neighbours in memory, and matrices."""
    window = torch.randn(count, len(parts.window_weight), parts.channels).transpose(1, 2)
    return window, torch.randn(count, parts.heads, parts.key_size, parts.value_size)


def attention_parts(
    kv_heads: int, sharing: int, size: int, *, is_gated: bool, is_normalised: bool, window: int = 0
) -> AttentionParts:
    """Parts of these shapes, with random weights."""
    heads = kv_heads * sharing
    return AttentionParts(
        heads=heads,
        kv_heads=kv_heads,
        size=size,
        is_gated=is_gated,
        norm_weight=torch.randn(heads + kv_heads, size) if is_normalised else None,
        norm_eps=1e-6,
        scaling=size**-0.5,
        window=window,
    )


def held_keys(parts: AttentionParts, count: int, capacity: int) -> HeldKeys:
    """Return random keys and values of `count` rows in any order, with NaN beyond each row's own."""
    block_size = 4
    slab = torch.randn(2, count + 2, parts.kv_heads, capacity, parts.size)
    slots = torch.randperm(count + 2)[:count]
    newest = torch.randint(capacity, (count,))
    for slot, last in zip(slots.tolist(), newest.tolist(), strict=True):
        slab[:, slot, :, last:] = float("nan")
    return HeldKeys(
        slab=slab,
        column=slots * capacity + newest,
        blocks=torch.randn(count + 3, 2 * parts.kv_heads, block_size, parts.size),
        places=torch.randperm((count + 3) * block_size)[:count],
        longest=int(newest.max()) + 1,
    )


def in_float64(held: HeldKeys) -> HeldKeys:
    """Return the same numbers, in separate tensors."""
    return held._replace(slab=held.slab.double(), blocks=held.blocks.double())


def half_parts(hidden: int, parts: DeltaRuleParts | AttentionParts) -> HalfParts:
    """Return layers around these parts, with random weights."""
    size = parts.value_size if isinstance(parts, DeltaRuleParts) else parts.size
    made = parts.heads * size
    return HalfParts(
        norm_weight=torch.randn(hidden),
        norm_eps=1e-6,
        projection=torch.randn(parts.columns, hidden) * hidden**-0.5,
        out=torch.randn(hidden, made) * made**-0.5,
    )


def expert_parts(
    hidden: int, num_experts: int, chosen: int, inner: int, shared: int, *, has_gate: bool
) -> ExpertParts:
    """Parts of these shapes, with random weights; `shared` 0: no shared expert."""
    scale = hidden**-0.5
    return ExpertParts(
        norm_weight=torch.randn(hidden),
        norm_eps=1e-6,
        router=torch.randn(num_experts, hidden),
        chosen=chosen,
        is_normalised=has_gate,
        gate_up=torch.randn(num_experts, 2 * inner, hidden) * scale,
        down=torch.randn(num_experts, hidden, inner) * inner**-0.5,
        shared_gate_up=torch.randn(2 * shared, hidden) * scale if shared else None,
        shared_down=torch.randn(hidden, shared) * shared**-0.5 if shared else None,
        shared_gate=torch.randn(hidden) * scale if shared and has_gate else None,
    )


def low_rank_parts(
    slots: int, inputs: int, sizes: list[int], rank: int, gap: int, dtype: torch.dtype
) -> LowRankParts:
    """Return random parts of layers with these numbers of outputs, separated by `gap` columns of other layers."""
    width = -(-rank * len(sizes) // 16) * 16
    down = torch.randn(slots, inputs, width) * inputs**-0.5
    down[:, :, rank * len(sizes) :] = 0
    begins = []
    begin = gap
    for size in sizes:
        begins.append(begin)
        begin += size + gap
    return LowRankParts(
        down=down.to(dtype),
        ups=tuple(torch.randn(slots, rank, size).to(dtype) for size in sizes),
        begins=tuple(begins),
    )


def slot_tokens(slots: int, count: int) -> SlotTokens:
    """Return about half of `count` tokens, each in some slot; the last slots may have none."""
    slot_of = torch.randint(2 * slots, (count,))
    chosen = (slot_of < slots).nonzero().flatten()
    order = chosen[slot_of[chosen].argsort(stable=True)]
    counts = slot_of[chosen].bincount()
    ends = counts.cumsum(0)
    return SlotTokens(order, ends)


def random_masks(rows: int, words: int, share: float) -> torch.Tensor:
    """Return masks i32[rows, words] in which each token has a bit with this probability."""
    bits = torch.rand(rows, words, 32) < share
    places = torch.arange(32)
    numbers = bits.long() << places
    return numbers.sum(-1).int()


def blocked_weight(
    outputs: int, inputs: int, *, has_bias: bool
) -> tuple[BlockedWeight, torch.Tensor]:
    """Return a random weight in blocks, and the same in rows, in float64."""
    weight = torch.randn(outputs, inputs).mul_(inputs**-0.5).bfloat16()
    blocks = -(-outputs // 64)
    filled = torch.zeros(64 * blocks, 32 * -(-inputs // 32), dtype=torch.bfloat16)
    filled[:outputs, :inputs] = weight
    pairs = filled.view(blocks, 64, -1, 2).transpose(1, 2).contiguous()
    bias = torch.randn(outputs) if has_bias else None
    made = BlockedWeight(outputs=outputs, inputs=inputs, blocks=pairs, bias=bias)
    return made, weight.double()


def paged_keys(parts: AttentionParts, count: int, longest: int, block_size: int) -> PagedKeys:
    """Return random keys and values of `count` rows, which share full blocks if permitted; NaN in unused slots."""
    width = -(-longest // block_size)
    lengths = torch.randint(1, longest + 1, (count,))
    table = torch.randperm(count * width + 3)[: count * width].view(count, width)
    shared = int(lengths.min()) - 1
    full = shared // block_size
    table[:, :full] = table[:1, :full].clone()
    blocks = torch.randn(count * width + 3, 2 * parts.kv_heads, block_size, parts.size)
    for row, length in enumerate(lengths.tolist()):
        last, place = divmod(length - 1, block_size)
        blocks[table[row, last], :, place + 1 :] = float("nan")
        blocks[table[row, last + 1 :]] = float("nan")
    return PagedKeys(blocks.bfloat16(), table.int().contiguous(), lengths)


class PagedShape(NamedTuple):
    """Shape of attention over blocks: `count` rows of up to `longest` tokens."""

    count: int
    kv_heads: int
    sharing: int
    size: int
    longest: int
    block_size: int
    window: int


def paged_case(shape: PagedShape) -> tuple[AttentionParts, PagedKeys]:
    """Return attention of this shape, without gate and norm, and its keys."""
    parts = attention_parts(
        shape.kv_heads,
        shape.sharing,
        shape.size,
        is_gated=False,
        is_normalised=False,
        window=shape.window,
    )
    return parts, paged_keys(parts, shape.count, shape.longest, shape.block_size)


def layer_parts(
    attention: AttentionParts, hidden: int, inner: int, *, has_bias: bool
) -> tuple[LayerParts, dict[str, torch.Tensor]]:
    """Return a layer with random weights, and these in rows by their names, in float64."""
    made = attention.heads * attention.size
    shapes = {
        "projection": (attention.columns, hidden),
        "out": (hidden, made),
        "gate_up": (2 * inner, hidden),
        "down": (hidden, inner),
    }
    blocked: dict[str, BlockedWeight] = {}
    exact: dict[str, torch.Tensor] = {}
    for name, (outputs, inputs) in shapes.items():
        blocked[name], exact[name] = blocked_weight(
            outputs, inputs, has_bias=has_bias and name == "projection"
        )
    parts = LayerParts(
        attention=attention,
        norm_weight=torch.randn(hidden),
        norm_eps=1e-6,
        second_norm_weight=torch.randn(hidden),
        second_norm_eps=1e-5,
        projection=blocked["projection"],
        out=blocked["out"],
        gate_up=blocked["gate_up"],
        down=blocked["down"],
    )
    return parts, exact


class LayerCase(NamedTuple):
    """Inputs of a kernel for a whole layer, and its `weights` in float64."""

    parts: LayerParts
    weights: dict[str, torch.Tensor]
    keys: PagedKeys
    hidden: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor


def spoilt_layer() -> LayerCase:
    """Return a small layer; row 1 of 3 contains NaN."""
    attention = attention_parts(2, 2, 16, is_gated=False, is_normalised=True)
    parts, weights = layer_parts(attention, 32, 64, has_bias=False)
    hidden = torch.randn(3, 32).bfloat16()
    hidden[1, 7] = float("inf")
    return LayerCase(
        parts,
        weights,
        keys=paged_keys(attention, 3, 20, 4),
        hidden=hidden,
        cos=torch.ones(3, 1, 8).bfloat16(),
        sin=torch.zeros(3, 1, 8).bfloat16(),
    )
