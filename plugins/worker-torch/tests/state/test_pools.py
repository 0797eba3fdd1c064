"""Memory of states by row: zeros that occupy pages as rows are used, and a log line with their maximum."""

from __future__ import annotations

import psutil
import pytest
import torch
import worker_families
import worker_tools

from tenonry_worker_torch.start_runner import state_memory
from tenonry_worker_torch.state.layer_cache import CONVOLUTION, RECURRENT, StateKey, StateShape
from tenonry_worker_torch.state.pools import room_for

MIB = 1 << 20
CPU = torch.device("cpu")


def key(kind):
    return StateKey(kind, 0)


def resident():
    return psutil.Process().memory_info().rss


@pytest.mark.slow
def test_rows_take_memory_when_they_are_first_written():
    before = resident()
    pool = room_for(512, key(RECURRENT), StateShape((512, 512), torch.float32), CPU)
    assert pool.shape == (512, 512, 512)
    assert resident() - before < 32 * MIB  # of 512
    assert not pool[511].any()
    pool[:64] = 1.0
    assert 56 * MIB < resident() - before < 128 * MIB
    assert float(pool.sum(dtype=torch.float64)) == 64 * 512 * 512
    del pool
    assert resident() - before < 32 * MIB


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_channels_of_a_window_are_neighbours(dtype):
    pool = room_for(3, key(CONVOLUTION), StateShape((5, 4), dtype), CPU)
    assert (pool.shape, pool.stride(), pool.dtype) == ((3, 5, 4), (20, 1, 5), dtype)
    assert not pool.any()
    pool[1] += 1
    assert pool.sum() == 20


def test_other_devices_and_states_of_no_size_are_plain_zeros():
    meta = torch.device("meta")
    assert room_for(3, key(RECURRENT), StateShape((2,), torch.float32), meta).device == meta
    assert room_for(3, key(RECURRENT), StateShape((0,), torch.float32), CPU).shape == (3, 0)


def test_what_states_may_take_is_said_with_the_flag_that_lowers_it():
    states = worker_tools.loaded(worker_families.build("mamba2")).states
    each = states.row_bytes
    assert each > 0
    assert state_memory(states, 256) == (
        f"State of sequences: {each / MIB:.3g} MiB each, at most {256 * each / MIB:.4g} MiB, taken as sequences run; "
        "--max-num-seqs, now 256, lowers it"
    )
