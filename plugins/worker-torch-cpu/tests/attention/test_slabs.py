from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tenonry_worker_torch_cpu.attention.slabs import Slabs, capacities


def ints(*numbers):
    return np.array(numbers, np.int64)


def make(budget=1 << 24):
    return Slabs(num_layers=2, num_kv_heads=1, size=4, dtype=torch.float32, budget_bytes=budget)


def test_capacities_grow_by_half_at_most():
    sizes = capacities(1000)
    assert sizes.tolist() == [64, 96, 128, 192, 256, 384, 512, 768, 1024]


def test_a_row_that_decodes_stays_where_it_is():
    slabs = make()
    ((_, first),) = slabs.place(ints(3, 5), ints(1, 1), ints(10, 20))[0]
    assert first.entering.tolist() == [True, True]
    ((_, second),) = slabs.place(ints(3, 5), ints(1, 1), ints(11, 21))[0]
    assert not second.entering.any()
    assert second.slots.tolist() == first.slots.tolist()


def test_a_new_request_or_a_gap_enters_again():
    slabs = make()
    slabs.place(ints(0, 1, 2), ints(1, 1, 1), ints(10, 10, 10))
    ((_, placed),) = slabs.place(ints(0, 1, 2), ints(2, 1, 1), ints(11, 13, 11))[0]
    assert placed.entering.tolist() == [True, True, False]


def test_a_row_moves_when_it_outgrows_its_slab():
    slabs = make()
    slabs.place(ints(0), ints(1), ints(64))
    ((_, placed),) = slabs.place(ints(0), ints(1), ints(65))[0]
    assert placed.slab.capacity == 96
    assert placed.entering.all()
    assert (slabs._slabs[0].owner == -1).all()


def test_a_slab_for_which_memory_is_short_is_empty_afterwards(monkeypatch):
    """Reliability, fault 9: the step is computed in smaller parts, which may find room."""
    slabs = make()
    slabs.place(ints(0, 1), ints(1, 1), ints(10, 10))
    with monkeypatch.context() as patched:
        patched.setattr(
            "tenonry_worker_torch_cpu.attention.slabs.zeros", lambda *_: torch.empty(1 << 60)
        )
        with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
            slabs.place(ints(0, 1, 2), ints(1, 1, 1), ints(11, 11, 10))
    assert slabs.used_bytes == 0
    ((_, placed),) = slabs.place(ints(0), ints(1), ints(11))[0]
    assert placed.entering.all()
    assert len(placed.slab.tensors) == slabs.num_layers


def test_a_slab_of_holes_is_packed_anew():
    slabs = make()
    rows = np.arange(32)
    slabs.place(rows, np.ones(32, np.int64), np.full(32, 10))
    ((_, placed),) = slabs.place(ints(30, 31), ints(1, 1), ints(11, 11))[0]
    assert placed.slots.tolist() == [0, 1]
    assert placed.entering.all()


def test_the_budget_holds_and_empty_slabs_make_room():
    one_slot_of_64 = 2 * 64 * 4 * 4 * 2
    slabs = make(budget=one_slot_of_64 * 2)
    placed, homeless = slabs.place(ints(0, 1, 2), ints(1, 1, 1), ints(5, 5, 70))
    assert homeless.tolist() == [2]
    assert [which.tolist() for which, _ in placed] == [[0, 1]]
    slabs.release(ints(0, 1))
    placed, homeless = slabs.place(ints(2), ints(1), ints(71))
    assert len(placed) == 1
    assert not len(homeless)
    assert slabs.used_bytes <= slabs.budget_bytes


@given(st.data())
def test_no_slot_has_two_owners(data):
    slabs = make(budget=data.draw(st.sampled_from([0, 60_000, 1 << 24])))
    length, generation = np.zeros(10, np.int64), np.zeros(10, np.int64)
    for _ in range(data.draw(st.integers(1, 12))):
        rows = np.array(
            data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=10, unique=True)), np.int64
        )
        length[rows] += data.draw(st.sampled_from([1, 1, 1, 30]))
        for row in rows:
            if data.draw(st.integers(0, 9)) == 0:
                generation[row] += 1
                length[row] = data.draw(st.integers(1, 150))
        placed, homeless = slabs.place(rows, generation[rows], length[rows])
        seen = sorted([*homeless.tolist(), *(int(i) for which, _ in placed for i in which)])
        assert seen == list(range(len(rows)))
        for which, placement in placed:
            assert (placement.slab.owner[placement.slots] == rows[which]).all()
            assert len(set(placement.slots.tolist())) == len(which)
            assert (length[rows[which]] <= placement.slab.capacity).all()
            assert all(
                tensor.shape[1] == len(placement.slab.owner) for tensor in placement.slab.tensors
            )
        assert slabs.used_bytes <= slabs.budget_bytes
        gone = np.array(data.draw(st.lists(st.integers(0, 9), max_size=3, unique=True)), np.int64)
        slabs.release(gone)
        length[gone] = 0
