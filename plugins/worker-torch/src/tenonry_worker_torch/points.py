"""The points that the worker `torch` opens. Any process: this module imports no torch, the base classes do."""

from __future__ import annotations

from tenonry.plugin import Point

ATTENTION_BACKENDS = Point(
    "tenonry.attention_backends",
    "tenonry_worker_torch.attention.base:AttentionBackend",
    {"sdpa": "tenonry-worker-torch", "cpu": "tenonry-worker-torch"},
)
BUFFERS = Point(
    "tenonry.buffers",
    "tenonry_worker_torch.buffers:StepBuffers",
    {"host": "tenonry-worker-torch", "cuda": "tenonry-cuda-buffers"},
    kind="buffers",
)
LOGITS_PROCESSORS = Point(
    "tenonry.logits_processors", "tenonry_worker_torch.sampler.processors:LogitsProcessor"
)
