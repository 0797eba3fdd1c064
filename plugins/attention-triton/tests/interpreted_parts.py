"""The kernels between matrix products in Triton's interpreter against float64: prints a JSON object, case → error.

The error of `turn_and_write` is the largest of queries, keys and values; all other slots must stay as they were.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import torch
from cases import PARTS

from tenonry_attention_triton import launch, launch_matrices, parts
from tenonry_torch_base.attention.base import LayerCache, LayerSpec
from tenonry_torch_base.attention.kv_storage import STORAGES

BLOCKS, BLOCK_SIZE = 6, 16


def distance(made, wanted):
    return float((made.double() - wanted).norm() / wanted.norm())


def normed(x, weight, eps):
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def turned(x, cos, sin):
    size = cos.shape[-1]
    some, rest = x[..., :size], x[..., size:]
    made = some * cos.double() + some.roll(size // 2, -1) * sin.double()
    return torch.cat([made, rest], -1)


def turn_and_write(heads, kv, size, rotated, has_norm, *more, tokens=5):
    """`more`: how K/V are kept, if not as they are, and the data type."""
    kept, dtype = ("auto", *more)[-2:]
    storage = STORAGES[kept](dtype)
    spec = LayerSpec(
        name="layer", index=0, num_heads=heads, num_kv_heads=kv, key_size=size, value_size=size, scaling=1.0
    )  # fmt: skip
    shape = (BLOCKS, 2 * kv, BLOCK_SIZE, storage.width(size))
    both = torch.full(shape, 255 if kept != "auto" else float("nan"), dtype=storage.kept_dtype)
    key, value = both.split(kv, 1)
    before = both.clone()
    qkv = torch.randn(tokens, (heads + 2 * kv) * size).to(dtype)
    angles = torch.rand(tokens, 1, rotated // 2).repeat(1, 1, 2) * 6
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    sin[..., : rotated // 2].neg_()
    weights = (torch.rand(heads + kv, size) + 0.5).to(dtype)
    slots = torch.randperm(BLOCKS * BLOCK_SIZE)[:tokens]
    query = parts.turn_and_write(
        launch.Shape(spec, dtype.itemsize, 8, storage), LayerCache(key, value, both), qkv, (cos, sin),
        parts.HeadWeights(weights, 1e-6) if has_norm else None, SimpleNamespace(slots=slots, block_size=BLOCK_SIZE),
    )  # fmt: skip
    every = qkv.view(tokens, -1, size)
    wanted = every[:, : heads + kv].double()
    if has_norm:
        wanted = normed(wanted, weights, 1e-6)
    wanted = torch.cat([turned(wanted, cos, sin), every[:, heads + kv :].double()], 1)
    block, place = slots // BLOCK_SIZE, slots % BLOCK_SIZE
    written = both[block, :, place].clone()
    both[block, :, place] = before[block, :, place]
    torch.testing.assert_close(both, before, rtol=0, atol=0, equal_nan=True)
    if not storage.is_exact:
        near = storage.packed(wanted[:, heads:].to(dtype))
        seen = [
            storage.unpacked(each, torch.empty(tokens, 2 * kv, size, dtype=dtype))
            for each in (written, near)
        ]
        return max(distance(query, wanted[:, :heads]), distance(seen[0], seen[1].double()))
    return max(
        distance(query, wanted[:, :heads]),
        distance(written[:, :kv], wanted[:, heads : heads + kv]),
        distance(written[:, kv:], wanted[:, heads + kv :]),
    )


def add_norm(size, has_other, dtype, rows=3):
    x, residual = torch.randn(2, rows, size).to(dtype)
    weight = torch.rand(size) + 0.5
    total = (x.float() + residual.float()).to(dtype) if has_other else residual.clone()
    made = parts.add_norm(x if has_other else None, residual, weight, 1e-5)
    torch.testing.assert_close(residual, total, rtol=0, atol=0)
    return distance(made, normed(total, weight, 1e-5))


def apart(made, wanted):
    """Distance of rows in fp8; infinite where scales, or rows that are not finite, are others."""
    same = torch.equal(made.scales.nan_to_num(-1), wanted.scales.nan_to_num(-1))
    numbers = [each.values.float().nan_to_num(-1) for each in (made, wanted)]
    return float((numbers[0] - numbers[1]).norm()) if same else float("inf")


def add_norm_rounded(size, has_other, dtype, rows=4):
    """Distance from the norm's rows, rounded by a kernel of their own; one of them is not finite."""
    x, residual = torch.randn(2, rows, size).to(dtype)
    residual[2] *= 100
    residual[1, 3] = float("nan")
    weight = torch.rand(size) + 0.5
    given, total = (x if has_other else None), residual.clone()
    made = parts.add_norm_rounded(given, residual, weight, 1e-5)
    wanted = launch_matrices.rounded_rows(parts.add_norm(given, total, weight, 1e-5))
    torch.testing.assert_close(residual, total, rtol=0, atol=0, equal_nan=True)
    return apart(made, wanted)


def gate_rounded(inner, dtype, rows=4):
    both = torch.randn(rows, 2 * inner).to(dtype)
    both[2] *= 100
    both[1, inner - 1] = float("nan")
    return apart(parts.gate_rounded(both), launch_matrices.rounded_rows(parts.gate(both)))


def gate(inner, dtype, rows=3):
    both = torch.randn(rows, 2 * inner).to(dtype)
    one, two = both.double().chunk(2, 1)
    return distance(parts.gate(both), torch.nn.functional.silu(one) * two)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    kinds = {
        each.__name__: each
        for each in (turn_and_write, add_norm, add_norm_rounded, gate, gate_rounded)
    }
    print(
        json.dumps({
            name: kinds[kind](*arguments, getattr(torch, dtype))
            for name, (kind, arguments, dtype) in PARTS.items()
        })
    )  # fmt: skip
