"""The verb `models`: `check` reports a model's requirements without reading weights, `convert` writes safetensors."""

from __future__ import annotations
