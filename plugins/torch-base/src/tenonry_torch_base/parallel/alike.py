"""Consistency check of engines that compute layers together, before a weight is read. Worker process, one rank of each.

They may have been started by people on several nodes, and tensors of two models can have one shape.
"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenonry.errors import ConfigError
from tenonry_torch_base.settings import torch_settings

if TYPE_CHECKING:
    from tenonry.interfaces.worker import WorkerContext

# Entries of a config.json about its own creation.
OF_WRITING = {"_name_or_path", "transformers_version"}
SETTINGS = ("data_parallel_sync_steps", "load_format", "tensor_parallel_size")


def served(context: WorkerContext) -> dict[str, str]:
    """Values that must be equal in all engines: name → value."""
    config = context.config
    model = context.model
    found = {name: str(getattr(config, name)) for name in SETTINGS}
    found["quantization"] = str(torch_settings(config).quantization)
    found["dtype"] = model.dtype if config.dtype == "auto" else config.dtype
    found["max_model_len"] = str(context.max_model_len)
    if config.load_format == "dummy":
        found["seed"] = str(config.seed)
    file = Path(model.path) / "config.json"
    entries: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    for name in entries.keys() - OF_WRITING:
        found[f"{name} (config.json)"] = json.dumps(entries[name], sort_keys=True)
    return found


def check_alike(
    store: Any, engine: int, num_engines: int, ours: dict[str, str], timeout_s: float
) -> None:
    """Raise ConfigError, in every engine, that names two different ones and the difference."""
    timeout = timedelta(seconds=timeout_s)
    store.set(f"serves/{engine}", json.dumps(ours))
    store.wait([f"serves/{index}" for index in range(num_engines)], timeout)
    everyone = [json.loads(store.get(f"serves/{index}")) for index in range(num_engines)]
    if engine:
        store.set(f"read/{engine}", b"1")
    else:  # the store may end with this process
        store.wait([f"read/{index}" for index in range(1, num_engines)], timeout)
    first = everyone[0]
    for index, other in enumerate(everyone):
        for name in sorted({*first, *other}):
            expected = first.get(name, "none")
            value = other.get(name, "none")
            if value != expected:
                raise ConfigError(
                    f"engine {index} has {name} {value[:80]}, engine 0 has {expected[:80]}; engines that share experts "
                    "need the same model and the same flags"
                )
