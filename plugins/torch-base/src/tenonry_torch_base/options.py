"""Options that workers on torch share. Light: read in the front end, too, to check a command line."""

from __future__ import annotations

from pydantic import Field

from tenonry.interfaces.plugin import PluginOptions


class ProfileOptions(PluginOptions):
    """`--worker-option key=value`: the profiles between `start_profile` and `stop_profile`."""

    profile_dir: str | None = Field(
        None, description="Folder for profiles of torch.profiler; without it there are none."
    )
    profile_stack: bool = Field(False, description="Note where in the code each operation began.")
    profile_gzip: bool = Field(True, description="Compress profiles.")


class DeviceOptions(PluginOptions):
    """`--worker-option key=value`: transfer of a step to the device, and additional logits processors."""

    buffers: str | None = Field(
        None, description="Step buffers; 'host' on the CPU, 'cuda' on CUDA by default."
    )
    num_threads: int | None = Field(
        None, description="Threads of torch; its own choice by default.", ge=1, le=4096
    )
    logits_processors: tuple[str, ...] = Field(
        (), description="Logits processors, after the built-in ones."
    )
    keep_freed_memory: bool = Field(
        True, description="Let the C library keep freed memory for the next step (Linux)."
    )
