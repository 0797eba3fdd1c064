"""Options that workers on torch share. Light: read in the front end, too, to check a command line."""

from __future__ import annotations

from pydantic import Field

from tenonry.interfaces.plugin import PluginOptions


class ProfileOptions(PluginOptions):
    """`--worker-option key=value`: the profiles between `start_profile` and `stop_profile`."""

    profile_dir: str | None = Field(
        None, description="Folder for torch.profiler traces. Without it, profiles are disabled."
    )
    profile_stack: bool = Field(False, description="Record the stack of each operation.")
    profile_gzip: bool = Field(True, description="Compress profiles.")


class DeviceOptions(PluginOptions):
    """`--worker-option key=value`: transfer of a step to the device, and additional logits processors."""

    buffers: str | None = Field(
        None, description="Step buffers; 'host' on the CPU, 'cuda' on CUDA by default."
    )
    num_threads: int | None = Field(
        None, description="Number of torch threads. Defaults to torch's choice.", ge=1, le=4096
    )
    logits_processors: tuple[str, ...] = Field(
        (), description="Logits processors, after the built-in ones."
    )
    keep_freed_memory: bool = Field(
        True, description="Make glibc keep freed memory for the next step."
    )
