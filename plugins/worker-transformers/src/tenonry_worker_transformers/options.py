"""The options of the worker `transformers`. Read in the front end to check a command line, and in the worker."""

from __future__ import annotations

from pydantic import Field

from tenonry.interfaces.plugin import PluginOptions


class TransformersOptions(PluginOptions):
    """`--worker-option key=value`."""

    buffers: str | None = Field(
        None, description="Step buffers; 'host' on the CPU, 'cuda' on CUDA by default."
    )
    num_threads: int | None = Field(
        None,
        description="Threads of torch; its own choice by default.",
        ge=1,
        le=4096,
    )
    logits_processors: tuple[str, ...] = Field(
        (), description="Logits processors, after the built-in ones."
    )
    keep_freed_memory: bool = Field(
        True, description="Let the C library keep freed memory for the next step (Linux)."
    )
    batching: bool = Field(
        True, description="Decode rows together where that was verified to give the same."
    )
