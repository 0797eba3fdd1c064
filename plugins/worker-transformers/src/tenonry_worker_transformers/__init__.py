"""The worker `transformers`: any model that `generate` can run, a cache object per request; runs in the worker."""

from __future__ import annotations
