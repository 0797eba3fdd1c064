"""The options of the worker `torch`. Read in the front end to check a command line, and in the worker process."""

from __future__ import annotations

from pydantic import Field

from tenonry.config import PluginChoice
from tenonry_torch_base.options import DeviceOptions, ProfileOptions


class TorchOptions(DeviceOptions, ProfileOptions):
    """`--worker-option key=value`."""

    fuse: bool = Field(
        True, description="Fuse and prepack layers where the result was verified to be the same."
    )
    step_kernels: str | None = Field(
        None,
        description="Kernels for parts of a step: by default the installed ones, where they are right and quicker; by "
        "name, wherever they are right; none for torch alone.",
    )
    max_cpu_loras: int | None = Field(
        None,
        ge=1,
        le=1 << 16,
        description="Most different adapters that are kept in main memory, at least --max-loras; by default all that "
        "are loaded.",
    )
    sliding_window_groups: bool = Field(
        True,
        description="Give blocks back that the window of a layer has left; false keeps all layers in one KV group, as "
        "KV connectors need it.",
    )
    runner_features: tuple[PluginChoice, ...] = Field(
        (),
        description="Additional features of the model runner, after the built-in ones: names, or objects with `name` "
        "and `options`.",
    )
    model_passes: tuple[PluginChoice, ...] = Field(
        (),
        description="Additional passes over the loaded model, after fusion and before weights are packed: names, or "
        "objects with `name` and `options`.",
    )
