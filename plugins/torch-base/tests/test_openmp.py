"""Torch's threads are found through the OpenMP library that it has loaded."""

from __future__ import annotations

import ctypes
import shutil
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


def test_another_openmp_library_in_the_process_is_left_alone(tmp_path):
    """scikit-learn brings one, for example, whose path can sort first."""
    address = team()
    lines = Path("/proc/self/maps").read_text().splitlines()
    own = next(
        line.split(maxsplit=5)[-1] for line in lines if "/torch/lib/lib" in line and "omp" in line
    )
    other = shutil.copy(own, tmp_path / "libgomp-other.so")
    assert ctypes.cast(ctypes.CDLL(other).GOMP_parallel, ctypes.c_void_p).value != address
    assert team() == address


def test_they_are_those_that_torch_computes_with():
    """The other thread has done its share of a torch computation with two threads."""
    before = torch.get_num_threads()
    mine = threading.get_native_id()
    try:
        torch.set_num_threads(1)
        started = _cpu_ns(mine)
        _compute()
        whole = _cpu_ns(mine) - started
        torch.set_num_threads(2)
        (other,) = set(thread_ids(2)) - {mine}
        started = _cpu_ns(other)
        _compute()
        assert _cpu_ns(other) - started > whole / 8
    finally:
        torch.set_num_threads(before)


def _compute() -> None:
    for _ in range(40):
        torch.ones(1 << 20).exp_().sum()


def _cpu_ns(thread: int) -> int:
    return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0])
