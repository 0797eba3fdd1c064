"""Profile of one rank by `torch.profiler`, and torch's files written when a process ends. Worker process."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tenonry.errors import ConfigError

if TYPE_CHECKING:
    from tenonry_torch_base.options import ProfileOptions

logger = logging.getLogger("tenonry.worker")


class RankProfile:
    """Profiles one rank, at most one profile at a time. `rank`: within the engine of index `engine`."""

    def __init__(self, options: ProfileOptions, rank: int, engine: int = 0) -> None:
        self._options = options
        self._name = f"{socket.gethostname()}_{os.getpid()}.engine{engine}.rank{rank}"
        self._running: Any = None
        self._count = 0

    def start(self) -> None:
        """Raises ConfigError without a folder, or while a profile runs."""
        folder = self._options.profile_dir
        if folder is None:
            raise ConfigError(
                "profiles need a folder: start with --worker-option profile_dir=FOLDER"
            )
        if self._running is not None:
            raise ConfigError("a profile runs already; stop_profile ends and writes it")
        Path(folder).mkdir(parents=True, exist_ok=True)
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        running = torch.profiler.profile(
            activities=activities, with_stack=self._options.profile_stack
        )
        running.start()
        self._running = running

    def stop(self) -> str:
        """The file that was written. Raises ConfigError when no profile runs."""
        running = self._running
        if running is None:
            raise ConfigError("no profile runs; start_profile begins one")
        self._running = None
        running.stop()
        suffix = "json.gz" if self._options.profile_gzip else "json"
        name = f"{self._name}.{self._count}.pt.trace.{suffix}"
        self._count += 1
        path = Path(self._options.profile_dir or ".") / name
        running.export_chrome_trace(str(path))
        logger.info("Wrote the profile %s", path)
        return str(path)

    def end(self) -> None:
        """The worker ends: a profile that runs is written."""
        if self._running is not None:
            self.stop()


def flush_tuning() -> bool:
    """Write TunableOp's results if it tunes while the model runs; returns True if it does.

    Without tuning, or if untuned operations are only recorded for later, there is nothing to write. Releases of torch
    without `torch.cuda.tunable.write_file`, such as 2.13, write each result when it is found.
    """
    if not torch.cuda.is_initialized():
        return False
    tunable = torch.cuda.tunable
    if not (tunable.is_enabled() and tunable.tuning_is_enabled()):
        return False
    write = getattr(tunable, "write_file", None)
    if write is None or tunable.record_untuned_is_enabled():
        return False
    write()
    return True
