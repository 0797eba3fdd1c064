"""The OpenMP library that torch has loaded, and the threads that it computes with. Worker process."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path

NAMES = ("libgomp", "libomp", "libiomp5")
MEMBER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
TEAM = ctypes.CFUNCTYPE(None, MEMBER, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)


def team() -> int | None:
    """The address of the function that runs something on torch's threads; None where they cannot be had.

    It is `GOMP_parallel` of the OpenMP library that is loaded already, which those of GNU, LLVM and Intel have.
    """
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return None
    paths = {line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines() if "omp" in line}
    for path in sorted(paths):
        if not Path(path).name.startswith(NAMES):
            continue
        entry = getattr(ctypes.CDLL(path), "GOMP_parallel", None)
        if entry is not None:
            return ctypes.cast(entry, ctypes.c_void_p).value
    return None


def thread_ids(num_threads: int) -> list[int]:
    """The system's numbers of the threads that compute for the calling one, which is among them; sorted.

    Those that sleep are woken. Empty where they cannot be had.
    """
    address = team()
    if address is None:
        return []
    found: list[int] = []

    def member(_: int | None) -> None:
        found.append(threading.get_native_id())

    TEAM(address)(MEMBER(member), None, num_threads, 0)
    return sorted(found)
