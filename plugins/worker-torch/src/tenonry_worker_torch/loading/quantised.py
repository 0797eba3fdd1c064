"""Quantisation of a model: configured at load, or of its checkpoint. Worker process."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from tenonry.errors import ConfigError, ModelError
from tenonry.plugin.discovery import installed
from tenonry.plugin.manager import resolve_point
from tenonry_hf_hub import GGUF_WEIGHTS, find_weights, read_headers
from tenonry_torch_base.folder import declared_quantisation, method_of
from tenonry_torch_base.points import QUANTISATIONS, resolve_class
from tenonry_torch_base.quantisations import Quantisation

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from tenonry_torch_base.checkpoint import Checkpoint

logger = logging.getLogger("tenonry.worker")

OF_GGUF = {"quant_method": "gguf"}  # implied by the file format
STORED_WEIGHT = "tenonry_quantised"  # of a module: stored tensors instead of its weight


class FoundQuantisation(NamedTuple):
    """`origin`: kind → its name and source."""

    quantisation: Quantisation
    origin: dict[str, str]

    @property
    def is_at_load(self) -> bool:
        """True if the checkpoint holds floats."""
        return self.quantisation.config is None


def find_quantisation(
    asked: str | None, raw: dict[str, Any], path: str, load_format: str
) -> FoundQuantisation | None:
    """Quantisation of a model; None for floats without the setting. `raw`: its config.json; `asked`: the setting.

    Raises ModelError for an unknown format, with the supported ones, ConfigError for a setting that is incompatible
    with the model, PluginError for an uninstalled name.
    """
    config = declared_quantisation(Path(path), raw)
    method = method_of(config)
    if method is None:
        stored = None if load_format in {"dummy", "sharded"} else _of_gguf(path)
        if stored is not None and asked in {None, stored.quantisation.name}:
            return stored
        return None if asked is None else _at_load(asked, path)
    if not isinstance(config, dict):
        raise ModelError(
            f"{path}/config.json: quantization_config is {str(config)[:80]!r}, no object"
        )
    name = asked or _reader(config, path, method)
    origin: dict[str, str] = {}
    found = resolve_class(QUANTISATIONS, name, origin)
    if not found.reads(config):
        raise ConfigError(
            f"quantization={asked}: {path} is quantised already ({method}); leave it out, or take the model with its "
            "floats"
        )
    if load_format in {"dummy", "sharded"}:
        raise ConfigError(
            f"load_format={load_format}: {path} is quantised ({method}), and such weights are read from its own files; "
            "use load_format=auto"
        )
    return FoundQuantisation(found(config), origin)


def _of_gguf(path: str) -> FoundQuantisation | None:
    """Return the quantisation that computes with blocks of a GGUF file; None without one, or without such blocks."""
    file = Path(path) / GGUF_WEIGHTS
    if not file.is_file():
        return None
    names = [record.name for record in installed(QUANTISATIONS)]
    for name in names:
        origin: dict[str, str] = {}
        found = resolve_class(QUANTISATIONS, name, origin)
        if found.reads(OF_GGUF):
            made = found(OF_GGUF)
            stored = read_headers(find_weights(path)).values()
            has_matrices = any(made.is_matrix({"weight": tensor}) for tensor in stored)
            return FoundQuantisation(made, origin) if has_matrices else None
    return None


def _reader(config: dict[str, Any], path: str, method: str) -> str:
    """The name of the installed quantisation that reads such a checkpoint."""
    names = [record.name for record in installed(QUANTISATIONS)]
    for name in names:
        if resolve_point(QUANTISATIONS, name)[0].reads(config):
            return name
    raise ModelError(_not_known(path, method, names))


def _at_load(asked: str, path: str) -> FoundQuantisation:
    origin: dict[str, str] = {}
    found = resolve_class(QUANTISATIONS, asked, origin)
    if found.quantise is Quantisation.quantise:
        raise ConfigError(
            f"quantization={asked}: {path} holds floats, and {asked} reads checkpoints only; int8 and int4 "
            "quantise weights at load"
        )
    return FoundQuantisation(found(None), origin)


def _not_known(path: str, method: str, names: list[str]) -> str:
    remedy = "take the model with its floats"
    if not names:
        remedy += ", or pip install tenonry-quantisations, which reads compressed-tensors, gptq, awq and fp8"
    else:
        remedy += f"; installed are {', '.join(names)}"
    return f"{path} is quantised ({method}), and none of the installed quantisations reads that; {remedy}"


def computes(
    found: FoundQuantisation | None, device: torch.device, dtype: torch.dtype
) -> Quantisation | None:
    """Return the quantisation whose layers compute; None if there are only floats, possibly dequantised ones."""
    if found is None:
        return None
    quantisation = found.quantisation
    reason = quantisation.refusal(device, dtype)
    if reason is None:
        return quantisation
    logger.info("Quantisation %s: dequantising weights: %s", quantisation.name, reason)
    return None


def stays_stored(found: FoundQuantisation | None, device: torch.device, dtype: torch.dtype) -> bool:
    """Return True if a checkpoint's matrices are usable without conversion."""
    if found is None or found.is_at_load:
        return False
    return found.quantisation.refusal(device, dtype) is None


def attach(model: PreTrainedModel, checkpoint: Checkpoint) -> None:
    """Attach quantised matrices to the linear layers that hold their dequantised weights."""
    matrices = checkpoint.matrices
    if matrices is None:
        return
    head = model.get_output_embeddings()
    for key, weight in matrices.read.items():
        owner, _, part = checkpoint.targets[key].rpartition(".")
        module = model.get_submodule(owner)
        if module is model.get_input_embeddings() and module.weight is getattr(
            head, "weight", None
        ):
            module = head  # the embedding itself looks up floats
        is_plain = type(module) is nn.Linear and part == "weight"
        if is_plain and key not in checkpoint.converters and module.weight.shape == weight.shape:
            setattr(module, STORED_WEIGHT, weight)
    matrices.read.clear()


def forget(config: Any) -> None:
    """Transformers must not quantise as well."""
    for each in (config, config.get_text_config()):
        for name in ("quantization_config", "compression_config"):
            vars(each).pop(name, None)
