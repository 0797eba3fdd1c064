"""The worker `torch`: one rank of a model, its KV cache and its sampler; runs in the worker."""

from __future__ import annotations
