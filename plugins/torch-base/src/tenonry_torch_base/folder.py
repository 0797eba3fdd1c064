"""What is in a model's folder, looked at before anything heavy happens. Worker process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tenonry.errors import ModelError
from tenonry_hf_hub import check_sizes, read_json

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


def architecture_of(config: dict[str, Any]) -> str:
    """What to call the model: the first of `architectures`, else the model type, else "?"."""
    names = config.get("architectures")
    first = names[0] if isinstance(names, list) and names else config.get("model_type")
    return first if isinstance(first, str) and first else "?"


def read_config(file: Path) -> dict[str, Any]:
    """config.json as a dictionary, its sizes within bounds. Raises ModelError naming the file."""
    config = read_json(file)
    check_sizes(config, file)
    return config


def _no_weights(folder: Path) -> str:
    unsafe = sorted(file.name for file in folder.iterdir() if file.suffix in UNSAFE_SUFFIXES)
    if unsafe:
        return (
            f"{folder} has its weights in {', '.join(unsafe[:3])}: such files can run code when they are read, so only "
            f"safetensors are loaded; convert them once: tenonry models convert {folder} {folder}-safetensors"
        )
    return f"{folder} holds no *.safetensors file; --load-format dummy runs it with random weights"
