"""The points that the worker `torch` opens. Any process: this module imports no torch, the base classes do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenonry.plugin import Point
from tenonry.plugin.discovery import find_entry_point

if TYPE_CHECKING:
    from collections.abc import Mapping

CPU = "tenonry-worker-torch-cpu"
CUDA = "tenonry-worker-torch-cuda"
TRITON = "tenonry-attention-triton"
# Passes used without being named, by type of device.
DEVICE_PASSES: dict[str, dict[str, str]] = {
    "cpu": dict.fromkeys(
        (
            "adapter-kernels",
            "invariance",
            "experts",
            "matrix-kernels",
            "packing",
            "kernels",
            "token-search",
        ),
        CPU,
    ),
    "cuda": {
        "triton-matrices": TRITON,
        "triton-layers": TRITON,
        "triton-truncation": TRITON,
        "graphs": CUDA,
    },
}
POOLING_PASSES = {"cpu": {"prompt-packing": CPU}}  # passes of the worker `pooling`
MODEL_PASSES = Point(
    "tenonry.model_passes",
    "tenonry_worker_torch.passes.model_pass:ModelPass",
    {
        **DEVICE_PASSES["cpu"],
        **DEVICE_PASSES["cuda"],
        **POOLING_PASSES["cpu"],
        "chunked-mlp": "tenonry-pass-chunked-mlp",
    },
    kind="model_pass",
    tier="alpha",
)
RUNNER_FEATURES = Point(
    "tenonry.runner_features",
    "tenonry_worker_torch.runner.feature:RunnerFeature",
    {"hidden-states": "tenonry-feature-hidden-states"},
    tier="alpha",
)


def missing_passes(wanted: Mapping[str, str]) -> dict[str, str]:
    """Name → distribution of the passes that are not installed."""
    return {name: each for name, each in wanted.items() if not find_entry_point(MODEL_PASSES, name)}
