"""The grouped addition, compared with one product per row: filled up, in segments, with prepacked weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tenonry_worker_torch.adapters.batch import AdapterBatch, StepAdapters
from tenonry_worker_torch.adapters.linear import LowRank, Part, adapted
from tenonry_worker_torch.fuse.linear import DenseLinear, merge
from tenonry_worker_torch_cpu.packing.onednn import OneDnnPacking, PackedLinear, can_pack

CPU = torch.device("cpu")
IN, SIZES, SLOTS = 24, (16, 8, 8), 4
NAMES = ("q", "k", "v")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(3)


def parts():
    begins = np.cumsum([0, *SIZES[:-1]]).tolist()
    return [Part(*part) for part in zip(NAMES, begins, SIZES, strict=True)]


def weights(rank, names=NAMES):
    sizes = dict(zip(NAMES, SIZES, strict=True))
    return {name: (torch.randn(rank, IN), torch.randn(sizes[name], rank)) for name in names}


def expected(x, slots, held):
    """Row by row, part by part."""
    out = torch.zeros(len(x), sum(SIZES))
    for row, slot in enumerate(slots):
        if slot < 0:
            continue
        for part in parts():
            if part.name in held[slot]:
                down, up = held[slot][part.name]
                out[row, part.begin : part.begin + part.size] = up @ (down @ x[row])
    return out


def put(_label, array):
    return torch.from_numpy(array)


def batch_of(slots):
    return AdapterBatch(np.array(slots, np.int32), put, "test")


def filled(held):
    low_rank = LowRank(parts(), SLOTS, torch.float32, CPU)
    slots = [None] * SLOTS
    for slot, adapter in enumerate(held):
        slots[slot] = adapter
        low_rank.put(slots, slot)
    return low_rank


ADAPTERS = [(2, NAMES), (5, ("v",)), (1, ("q", "k")), (3, NAMES)]


@pytest.mark.parametrize(
    ("slots", "is_padded"),
    [
        ([0, 1, 2, 3], True),
        ([3, -1, 1, 1, -1, 3, 2, 2], True),
        ([2, 2, 2, 2, -1, -1], False),
        ([1] * 20 + [3, -1, 0], False),
        ([0, 3, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0], False),
        ([-1, 0], False),
    ],
)
def test_every_row_gets_what_its_adapter_makes(slots, is_padded):
    held = [weights(rank, names) for rank, names in ADAPTERS]
    x = torch.randn(len(slots), IN)
    batch = batch_of(slots)
    assert batch.is_padded == is_padded
    out = torch.ones(len(slots), sum(SIZES))
    filled(held).add(x, out, batch)
    torch.testing.assert_close(out, 1 + expected(x, slots, held), rtol=1e-4, atol=1e-4)


def test_a_slot_that_is_taken_over_holds_nothing_of_the_former_one():
    held = [weights(5), weights(2, ("k",))]
    low_rank = filled(held)
    held[0] = weights(2, ("v",))
    low_rank.put([*held, None, None], 0)
    slots = [0, 1, 0]
    x = torch.randn(3, IN)
    out = torch.zeros(3, sum(SIZES))
    low_rank.add(x, out, batch_of(slots))
    torch.testing.assert_close(out, expected(x, slots, held), rtol=1e-4, atol=1e-4)


def test_a_layer_that_no_adapter_adds_to_takes_no_memory_and_changes_nothing():
    low_rank = filled([weights(2, ())])
    out = torch.ones(2, sum(SIZES))
    low_rank.add(torch.randn(2, IN), out, batch_of([0, 0]))
    assert out.eq(1).all()


@pytest.mark.skipif(not can_pack(torch.bfloat16, CPU), reason="oneDNN has no bfloat16 here")
def test_around_a_prepacked_merged_layer():
    modules = [torch.nn.Linear(IN, size).bfloat16().requires_grad_(False) for size in SIZES]
    held = [weights(rank, names) for rank, names in ADAPTERS]
    low_rank = LowRank(parts(), SLOTS, torch.bfloat16, CPU)
    for slot in range(SLOTS):
        low_rank.put([*held[: slot + 1], *[None] * (SLOTS - slot - 1)], slot)
    step = StepAdapters()
    dense = merge(modules)
    plain = DenseLinear(dense.weight.float(), dense.bias.float())
    layer = adapted(dense, low_rank, step).packed(OneDnnPacking())
    assert isinstance(layer.inner, PackedLinear)
    slots = [0, -1, 1, 2, 3]
    x, other = torch.randn(5, IN).bfloat16(), torch.randn(5, sum(SIZES)).bfloat16()
    wanted = plain(x.float())
    torch.testing.assert_close(layer(x).float(), wanted, rtol=0.05, atol=0.1)
    step.full = batch_of(slots)
    wanted += expected(x.float(), slots, held)
    torch.testing.assert_close(layer(x).float(), wanted, rtol=0.05, atol=0.3)
    torch.testing.assert_close(
        layer.add(x, other).float(), wanted + other.float(), rtol=0.05, atol=0.3
    )
