"""Contents of a model's folder, checked before any expensive work. Worker process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tenonry.errors import ModelError
from tenonry_hf_hub import GGUF_WEIGHTS, check_sizes, read_json, text_config

MODELOPT_FILE = "hf_quant_config.json"
UNSAFE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def check_folder(
    path: str, *, needs_weights: bool, reads_quantised: bool = False
) -> dict[str, Any]:
    """Return the folder's config.json. Raises ModelError when it cannot be read, or the folder holds no supported
    weights.

    Weights in pickle files are rejected by name: reading them may run code that they carry. So are quantised ones,
    unless the worker `reads_quantised`.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ModelError(
            f"model folder {path} does not exist; give a folder with config.json and *.safetensors"
        )
    config = read_config(folder / "config.json")
    method = method_of(declared_quantisation(folder, config))
    if method is not None and not reads_quantised:
        raise ModelError(
            f"{path} is quantised ({method}); this worker runs only float32, bfloat16 and float16 weights"
        )
    if needs_weights and not has_weights(folder):
        raise ModelError(_no_weights(folder))
    return config


def has_weights(folder: Path) -> bool:
    """Return True if there are weights of a supported kind."""
    return any(folder.glob("*.safetensors")) or (folder / GGUF_WEIGHTS).is_file()


def declared_quantisation(folder: Path, config: dict[str, Any]) -> Any:
    """Quantisation declared by the folder; None for floats. `config`: config.json, which may declare it for its text
    model alone. ModelOpt has a separate file: https://nvidia.github.io/Model-Optimizer.
    """
    text = text_config(config)
    for key in ("quantization_config", "compression_config"):
        if found := config.get(key) or text.get(key):
            return found
    file = folder / MODELOPT_FILE
    if not file.exists():
        return None
    found = read_json(file).get("quantization")
    return {"quant_method": "modelopt", **found} if isinstance(found, dict) else None


def method_of(quantised: Any) -> str | None:
    """Name of a declared format; None for floats."""
    if not quantised:
        return None
    if not isinstance(quantised, dict):
        return str(quantised)[:80]
    method = str(quantised.get("quant_method", "unknown"))
    algorithm = quantised.get("quant_algo")
    return (f"{method} {algorithm}" if isinstance(algorithm, str) else method)[:80]


def architecture_of(config: dict[str, Any]) -> str:
    """Display name of the model: the first of `architectures`, else the model type, else `"?"`."""
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
