"""Paged attention in Triton: the attention backend `triton` for the worker `torch` on CUDA."""

from __future__ import annotations
