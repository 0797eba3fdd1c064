"""Torch's threads are found through the OpenMP library that it has loaded."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from tenonry_torch_base.openmp import team, thread_ids

pytestmark = pytest.mark.skipif(team() is None, reason="torch's threads cannot be had here")


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_as_many_threads_as_asked_for_with_the_caller_among_them(num_threads):
    found = thread_ids(num_threads)
    assert len(set(found)) == num_threads
    assert found == sorted(found)
    assert threading.get_native_id() in found


def test_they_are_those_that_torch_computes_with():
    """Whatever has used processor time after a sum in two threads is among them."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = thread_ids(2)
        times = {thread: _cpu_ns(thread) for thread in _all_threads()}
        for _ in range(40):
            torch.ones(1 << 20).exp_().sum()
        busiest = max(
            (thread for thread in times if thread != threading.get_native_id()),
            key=lambda thread: _cpu_ns(thread) - times[thread],
        )
        assert busiest in found
    finally:
        torch.set_num_threads(before)


def _all_threads() -> list[int]:
    return [int(path.name) for path in Path("/proc/self/task").iterdir()]


def _cpu_ns(thread: int) -> int:
    """0 for one that has ended."""
    try:
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0])
    except OSError:
        return 0
