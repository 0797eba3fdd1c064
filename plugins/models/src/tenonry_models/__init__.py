"""The verb `models`: `check` says what a model needs before a weight is read, `convert` makes safetensors."""

from __future__ import annotations
