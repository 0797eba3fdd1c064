"""The points that the worker `torch` opens. Any process: this module imports no torch, the base classes do."""

from __future__ import annotations

from tenonry.plugin import Point
from tenonry.plugin.discovery import find_entry_point

CPU = "tenonry-worker-torch-cpu"
ATTENTION_BACKENDS = Point(
    "tenonry.attention_backends",
    "tenonry_worker_torch.attention.base:AttentionBackend",
    {"sdpa": "tenonry-worker-torch", "cpu": CPU, "invariant": CPU},
)
DEFAULT_BACKENDS = {"cpu": ("cpu", "sdpa"), "cuda": ("sdpa",)}  # the first one that is installed
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
    )
}
MODEL_PASSES = Point(
    "tenonry.model_passes",
    "tenonry_worker_torch.passes.model_pass:ModelPass",
    {name: provider for passes in DEVICE_PASSES.values() for name, provider in passes.items()},
    kind="model_pass",
)
RUNNER_FEATURES = Point(
    "tenonry.runner_features", "tenonry_worker_torch.runner.feature:RunnerFeature"
)


def missing_passes(device: str) -> dict[str, str]:
    """Name → distribution of the passes for a type of device that are not installed."""
    wanted = DEVICE_PASSES.get(device, {})
    return {name: each for name, each in wanted.items() if not find_entry_point(MODEL_PASSES, name)}


def default_backend(device: str) -> str:
    """Name of the first installed attention backend for a type of device."""
    names = DEFAULT_BACKENDS[device]
    return next((name for name in names if find_entry_point(ATTENTION_BACKENDS, name)), names[-1])
