"""The worker `pooling`: vectors and scores of whole prompts, by models of transformers; runs in the worker."""

from __future__ import annotations
