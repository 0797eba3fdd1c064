"""Resources of one node for the ranks of an engine: cores, devices, a rendezvous. Engine and ranks."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

import psutil

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError, LaunchError
from tenonry.transport.folder import RunDirectory

THREADS_VARIABLE = "OMP_NUM_THREADS"


def threads_per_rank(config: EngineConfig) -> int | None:
    """Threads for each rank, so that all ranks of all engines of this node together use each core once.

    None if there is nothing to decide: a single rank, or OMP_NUM_THREADS is set.
    """
    if config.world_size == 1 or os.environ.get(THREADS_VARIABLE):
        return None
    engines = config.data_parallel_size_local or config.data_parallel_size
    return max(1, usable_cores() // (config.world_size * engines))


def usable_cores() -> int:
    """Cores that compute at the same time and that this process may use."""
    usable = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, min(psutil.cpu_count(logical=False) or usable, usable))


def check_devices(device: str, num_ranks: int) -> None:
    """Raise ConfigError if `device` requires CUDA and this node has fewer devices than ranks. Called in a rank."""
    if num_ranks == 1 or not device.startswith("cuda"):
        return
    if ":" in device:
        raise ConfigError(
            f"device={device} is one device, but there are {num_ranks} ranks; use device=cuda"
        )
    found = cuda_devices()
    if found is not None and found < num_ranks:
        raise ConfigError(
            f"{num_ranks} ranks (tensor_parallel_size × pipeline_parallel_size) need {num_ranks} CUDA devices, but "
            f"this node has {found}; lower --tensor-parallel-size or --pipeline-parallel-size, or make more devices "
            "visible (CUDA_VISIBLE_DEVICES)"
        )


def cuda_devices() -> int | None:
    """Number of visible CUDA devices, as counted by the driver; None without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def describe_processes(pids: Mapping[str, int | None]) -> str:
    """Processes by name with pid and state, first those that cannot answer because they are stopped."""
    texts = [
        f"{name} (pid {pid}, {_state(pid)})" if pid else f"{name} (ended)"
        for name, pid in pids.items()
    ]
    return ", ".join(sorted(texts, key=lambda text: "stopped)" not in text))


def _state(pid: int) -> str:
    try:
        return str(psutil.Process(pid).status())
    except psutil.NoSuchProcess:
        return "ended"


class Rendezvous:
    """Rendezvous file of the ranks of one node. Nameless where the system supports it, so that nothing is left behind.

    `url` is "" for a single rank, `fds` holds the descriptors that a rank inherits to open it, `folder` a directory to
    remove, if any. Raises LaunchError if there are no file descriptors left.
    """

    def __init__(self, num_ranks: int) -> None:
        self.url = ""
        self.fds: tuple[int, ...] = ()
        self.folder = ""
        self._run: RunDirectory | None = None
        if num_ranks == 1:
            return
        if not hasattr(os, "memfd_create"):
            self._run = RunDirectory()
            self.folder = self._run.path
            self.url = f"file://{self.folder}/rendezvous"
            return
        try:
            fd = os.memfd_create("tenonry-rendezvous")
        except OSError as error:
            raise LaunchError(
                f"no rendezvous file for {num_ranks} ranks: {error.strerror}"
            ) from error
        self.url = f"file:///proc/self/fd/{fd}"
        self.fds = (fd,)

    def close(self) -> None:
        """Every rank has loaded, or never will. Idempotent."""
        for fd in self.fds:
            os.close(fd)
        self.fds = ()
        if self._run is not None:
            self._run.close()
