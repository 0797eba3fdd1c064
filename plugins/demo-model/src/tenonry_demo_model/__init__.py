"""The model `demo`: a small trained model as package data, found by name in the process that starts an engine."""

from __future__ import annotations

from pathlib import Path


def model_path() -> str:
    """Return the absolute path of the folder with weights, configuration, tokenizer and chat template."""
    return str(Path(__file__).resolve().parent / "model")
