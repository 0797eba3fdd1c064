"""The points that the worker `torch` opens. Any process: this module imports no torch, the base classes do."""

from __future__ import annotations

from tenonry.plugin import Point

ATTENTION_BACKENDS = Point(
    "tenonry.attention_backends",
    "tenonry_worker_torch.attention.base:AttentionBackend",
    {"sdpa": "tenonry-worker-torch", "cpu": "tenonry-worker-torch"},
)
MODEL_PASSES = Point(
    "tenonry.model_passes", "tenonry_worker_torch.passes.model_pass:ModelPass", kind="model_pass"
)
RUNNER_FEATURES = Point(
    "tenonry.runner_features", "tenonry_worker_torch.runner.feature:RunnerFeature"
)
