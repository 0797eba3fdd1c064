"""The worker `auto`: the first of its candidates that serves the model; runs in the worker."""

from __future__ import annotations
