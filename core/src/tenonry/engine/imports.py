"""What an engine's process imports beyond the kernel: done once, in the process of which engines are forked."""

from __future__ import annotations

import msgspec

import tenonry.engine.proc  # noqa: F401 - what the process runs
from tenonry.checks.plugins import load_options
from tenonry.info import ModelInfo
from tenonry.launch.process import EngineImports
from tenonry.plugin.plan import load_class


def preload(text: str) -> None:
    """Import what the worker of an engine asks for. `text`: `EngineImports` as JSON."""
    imports = msgspec.json.decode(text, type=EngineImports)
    worker = load_class(imports.worker)
    model = msgspec.json.decode(imports.model_text, type=ModelInfo)
    worker.preload(model, load_options(imports.worker, worker))
