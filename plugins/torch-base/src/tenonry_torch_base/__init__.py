"""Shared code of workers on torch: sampler, token history, step buffers, results, and reading of model folders."""

from __future__ import annotations
