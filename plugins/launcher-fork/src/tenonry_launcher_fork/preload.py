"""Imports of an engine's process, done once in the process that is forked. Fork server."""

from __future__ import annotations

import msgspec

import tenonry_launcher_fork.forked_engine  # noqa: F401 - the module that an engine's process runs
from tenonry.info import ModelInfo, PluginRecord
from tenonry.plugin.checks import load_options
from tenonry.plugin.plan import load_class


class EngineImports(msgspec.Struct, frozen=True, kw_only=True):
    """Plugins and model, which determine the imports of an engine's process and its ranks beyond the kernel."""

    executor: PluginRecord
    worker: PluginRecord
    model_text: str


def preload(text: str) -> None:
    """Import the modules that the worker names. `text`: `EngineImports` as JSON."""
    imports = msgspec.json.decode(text, type=EngineImports)
    load_class(imports.executor)
    worker = load_class(imports.worker)
    model = msgspec.json.decode(imports.model_text, type=ModelInfo)
    worker.preload(model, load_options(imports.worker, worker))
