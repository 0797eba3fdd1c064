"""tenonry: a plugin-first inference engine for language models.

Public names load on first use, so that importing the package costs nothing; `__init__.pyi` has their types.
"""

from __future__ import annotations

import importlib
from typing import Any

from tenonry.version import __version__ as __version__

_PUBLIC = {
    "LLM": "tenonry.client.llm",
    "AsyncLLM": "tenonry.client.async_llm",
    "EngineConfig": "tenonry.config",
    "PoolingParams": "tenonry.sampling_params",
    "SamplingParams": "tenonry.sampling_params",
    "StructuredOutput": "tenonry.sampling_params",
    "RequestOutput": "tenonry.outputs",
    "CompletionOutput": "tenonry.outputs",
    "hookimpl": "tenonry.plugin.hookspecs",
}
_OF_PLUGINS = {"LoRARequest": "tenonry_operations.lora_request"}
__all__ = [*_PUBLIC, "__version__"]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    module = (_PUBLIC | _OF_PLUGINS).get(name)
    if module is None:
        raise AttributeError(f"module 'tenonry' has no attribute '{name}'")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)
