"""What workers on torch share: sampler, tokens of rows, step buffers, results, and how a model's folder is read."""

from __future__ import annotations
