"""The point that the worker `torch` opens. Any process: this module imports no torch, the base class does."""

from __future__ import annotations

from tenonry.plugin import Point

ATTENTION_BACKENDS = Point(
    "tenonry.attention_backends",
    "tenonry_worker_torch.attention.base:AttentionBackend",
    {"sdpa": "tenonry-worker-torch", "cpu": "tenonry-worker-torch"},
)
