"""Environment of a measurement: the machine, the interpreter, the versions, and the load. Any process."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import time
from pathlib import Path

import msgspec
import psutil

from tenonry_bench.pace import Pace, measure_pace

LIBRARIES = (
    "torch",
    "transformers",
    "numpy",
    "msgspec",
    "pyzmq",
    "uvloop",
    "pydantic",
    "tokenizers",
)


class Machine(msgspec.Struct, kw_only=True):
    """`load_average` over the last minute, at the start: above 0.5 per core the figures are not worth keeping."""

    time_utc: str
    python: str
    system: str
    cpu: str
    physical_cores: int
    usable_cores: int
    memory_gib: float
    load_average: float
    pace: Pace
    versions: dict[str, str]
    torch_threads: int | None = None


def describe_machine() -> Machine:
    """Look around."""
    return Machine(
        time_utc=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        system=platform.platform(),
        cpu=cpu_name(),
        physical_cores=physical_cores(),
        usable_cores=usable_cores(),
        memory_gib=round(psutil.virtual_memory().total / 2**30, 1),
        load_average=os.getloadavg()[0],
        pace=measure_pace(),
        versions=versions(),
        torch_threads=torch_threads(),
    )


def cpu_name() -> str:
    """The processor as the system names it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text("utf-8", "replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Logical cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def physical_cores() -> int:
    """Cores that compute at the same time, and that this process may use: threads above that number slow torch down."""
    return max(1, min(psutil.cpu_count(logical=False) or usable_cores(), usable_cores()))


def versions() -> dict[str, str]:
    """Every installed distribution of ours, and the libraries that decide how fast it is."""
    found = {}
    for dist in importlib.metadata.distributions():
        name = dist.name
        if name and (name.startswith("tenonry") or name.lower() in LIBRARIES):
            found[name] = dist.version
    return dict(sorted(found.items()))


def torch_threads() -> int | None:
    """Number of torch's threads; None if torch is not loaded."""
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch is not None else None
