"""tenonry: a plugin-first inference engine for language models.

Public names load on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tenonry.version import __version__ as __version__

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM as AsyncLLM
    from tenonry.client.llm import LLM as LLM
    from tenonry.config import EngineConfig as EngineConfig
    from tenonry.outputs import CompletionOutput as CompletionOutput
    from tenonry.outputs import RequestOutput as RequestOutput
    from tenonry.plugin.hookspecs import hookimpl as hookimpl
    from tenonry.sampling_params import PoolingParams as PoolingParams
    from tenonry.sampling_params import SamplingParams as SamplingParams
    from tenonry.sampling_params import StructuredOutput as StructuredOutput

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
__all__ = [*_PUBLIC, "__version__"]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'tenonry' has no attribute '{name}'")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)
