"""What is in a model's folder, looked at before anything heavy happens. Worker process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tenonry.errors import ModelError

UNSAFE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def check_folder(path: str, *, needs_weights: bool) -> dict[str, Any]:
    """The folder's config.json. Raises ModelError when it cannot be read, or holds no safetensors files.

    Weights in pickle files are refused by name: reading them may run code that they carry.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ModelError(
            f"model folder {path} does not exist; give a folder with config.json and *.safetensors"
        )
    config = read_config(folder / "config.json")
    if quantised := config.get("quantization_config"):
        method = (
            quantised.get("quant_method", "unknown") if isinstance(quantised, dict) else quantised
        )
        raise ModelError(
            f"{path} is quantised ({method}); only float32, bfloat16 and float16 weights can be run"
        )
    if needs_weights and not any(folder.glob("*.safetensors")):
        raise ModelError(_no_weights(folder))
    return config


def read_config(file: Path) -> dict[str, Any]:
    """config.json as a dictionary. Raises ModelError naming the file."""
    try:
        config = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ModelError(f"{file} is not valid JSON: {error}") from None
    if not isinstance(config, dict):
        raise ModelError(f"{file} must hold a JSON object, not a {type(config).__name__}")
    return config


def _no_weights(folder: Path) -> str:
    unsafe = sorted(file.name for file in folder.iterdir() if file.suffix in UNSAFE_SUFFIXES)
    if unsafe:
        return (
            f"{folder} has its weights in {', '.join(unsafe[:3])}: such files can run code when they are read, so only "
            f"safetensors are loaded; convert them once: tenonry models convert {folder} {folder}-safetensors"
        )
    return f"{folder} holds no *.safetensors file; --load-format dummy runs it with random weights"
