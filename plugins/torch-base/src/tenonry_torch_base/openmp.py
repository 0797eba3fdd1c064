"""The OpenMP library that torch has loaded, and the threads that it computes with. Worker process."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

TORCH = "libtorch_cpu."
MEMBER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
TEAM = ctypes.CFUNCTYPE(None, MEMBER, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)


def team() -> int | None:
    """Address of the function that runs a task on torch's threads; None if they are not available.

    It is `GOMP_parallel`, which the OpenMP libraries of GNU, LLVM and Intel have. It is found in the library linked
    with torch: other packages, such as scikit-learn, contain OpenMP libraries with separate threads.
    """
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return None
    for line in os.fsdecode(maps.read_bytes()).splitlines():
        path = line.split(maxsplit=5)[-1]
        if Path(path).name.startswith(TORCH):
            entry = getattr(ctypes.CDLL(path), "GOMP_parallel", None)
            return None if entry is None else ctypes.cast(entry, ctypes.c_void_p).value
    return None


def thread_ids(num_threads: int) -> list[int]:
    """Thread ids of the system for the threads that compute for the calling one, itself included; sorted.

    Sleeping ones are woken. Empty if not available.
    """
    address = team()
    if address is None:
        return []
    found: list[int] = []

    def member(_: int | None) -> None:
        found.append(threading.get_native_id())

    TEAM(address)(MEMBER(member), None, num_threads, 0)
    return sorted(found)
