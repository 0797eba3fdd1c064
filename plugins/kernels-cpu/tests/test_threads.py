"""Number of a kernel's threads: fewer if previous threads waited for each other or for a processor."""

from __future__ import annotations

import ctypes
import shutil
import time
from pathlib import Path

import pytest

from tenonry_kernels_cpu.library import PATH, library

pytestmark = pytest.mark.skipif(not PATH.exists(), reason="no library was built")

TINY_NS = 50_000
SHORT_NS = 100_000
LONG_NS = 1_000_000
BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
TEAM = ctypes.CFUNCTYPE(None, BODY, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)


class Threads:
    """A library of its own, whose team is one thread, and another that comes `late_s` after it."""

    def __init__(self, path: Path) -> None:
        self.late_s = 0.0
        self.ran = 0
        self._library = ctypes.CDLL(str(path))
        self._library.tenonry_threads_for.argtypes = [ctypes.c_int64, ctypes.c_int64]
        self._library.tenonry_threads_for.restype = ctypes.c_int64
        self._library.tenonry_together.argtypes = [ctypes.c_int64, BODY, ctypes.c_void_p]
        self._library.tenonry_kernels_team.argtypes = [ctypes.c_void_p]
        self._team = TEAM(self._run_team)  # as long as the library may call it
        self._library.tenonry_kernels_team(ctypes.cast(self._team, ctypes.c_void_p))

    def for_work(self, work_ns: int) -> int:
        return self._library.tenonry_threads_for(2, work_ns)

    def region(self) -> None:
        self._library.tenonry_together(2, BODY(self._run_body), None)

    def _run_body(self, _: int | None) -> None:
        self.ran += 1

    def _run_team(self, member, data: int, threads: int, flags: int) -> None:
        assert (threads, flags) == (2, 0)
        member(data)
        time.sleep(self.late_s)


@pytest.fixture
def threads(tmp_path: Path) -> Threads:
    library()  # which loads what it is linked with
    path = tmp_path / "libkernels.so"
    shutil.copy(PATH, path)
    return Threads(path)


def test_work_that_takes_less_than_waking_a_thread_has_one(threads: Threads):
    assert [threads.for_work(ns) for ns in (0, TINY_NS, SHORT_NS, LONG_NS)] == [1, 1, 2, 2]


def test_regions_that_wait_make_short_ones_have_one_thread_for_a_while(threads: Threads):
    threads.late_s = 0.001
    for _ in range(8):  # each makes it longer, up to 0.4 s
        threads.region()

    assert threads.ran == 8
    assert threads.for_work(SHORT_NS) == 1
    assert threads.for_work(LONG_NS) == 2
    time.sleep(0.5)
    assert threads.for_work(SHORT_NS) == 2
    threads.region()
    assert threads.for_work(SHORT_NS) == 1
