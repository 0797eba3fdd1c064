"""The options of the worker `torch`. Read in the front end to check a command line, and in the worker process."""

from __future__ import annotations

from pydantic import Field

from tenonry.config import PluginChoice
from tenonry_torch_base.options import DeviceOptions, ProfileOptions


class TorchOptions(DeviceOptions, ProfileOptions):
    """`--worker-option key=value`."""

    fuse: bool = Field(
        True, description="Fuse and pack layers if verified to give the same results."
    )
    step_kernels: str | None = Field(
        None,
        description="Step kernels. By default, installed ones that are correct and faster; a "
        "name selects all correct ones; none disables them.",
    )
    max_cpu_loras: int | None = Field(
        None,
        ge=1,
        le=1 << 16,
        description="Maximum different adapters in main memory, at least --max-loras. "
        "Defaults to all loaded ones.",
    )
    sliding_window_groups: bool = Field(
        True,
        description="Free blocks outside the window of a layer. false keeps all layers in one "
        "KV group, as required by KV connectors.",
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
