"""The options of the worker `pooling`. Read in the front end to check a command line, and in the worker."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tenonry.config import PluginChoice
from tenonry_torch_base.options import ProfileOptions


class PoolingOptions(ProfileOptions):
    """`--worker-option key=value`."""

    pooling: Literal["mean", "cls", "lasttoken"] | None = Field(
        None, description="Pooling method. Defaults to that in the model's files."
    )
    batch_tokens: int = Field(
        16_384,
        description="Maximum tokens of a padded batch, unless a single prompt has more.",
        ge=1,
    )
    num_threads: int | None = Field(
        None, description="Number of torch threads. Defaults to torch's choice.", ge=1, le=4096
    )
    runner_features: tuple[PluginChoice, ...] = Field(
        (),
        description="Additional features of the model runner, after the built-in ones: names, or objects with `name` "
        "and `options`.",
    )
    model_passes: tuple[PluginChoice, ...] = Field(
        (),
        description="Additional passes over the loaded model, before weights are packed: names, or objects with `name` "
        "and `options`.",
    )
    keep_freed_memory: bool = Field(
        True, description="Make glibc keep freed memory for the next step."
    )
