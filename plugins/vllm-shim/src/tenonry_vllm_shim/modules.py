"""Stand-ins for the modules of vLLM that its plugins import, present only while a plugin is loaded or built.

They are left out where vLLM is installed. Afterwards `import vllm` fails as before, so that libraries that look for
vLLM do not take the stand-in for it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from tenonry.outputs import FinishReason
from tenonry_vllm_shim import shapes
from tenonry_vllm_shim.config import VllmConfig

NAMES: dict[str, dict[str, Any]] = {
    "vllm": {},
    "vllm.config": {"VllmConfig": VllmConfig},
    "vllm.inputs": {"PromptType": Any},
    "vllm.inputs.data": {"PromptType": Any},
    "vllm.logger": {"init_logger": logging.getLogger},
    "vllm.outputs": {
        "PoolingOutput": shapes.PoolingOutput,
        "PoolingRequestOutput": shapes.PoolingRequestOutput,
    },
    "vllm.plugins": {},
    "vllm.plugins.io_processors": {},
    "vllm.plugins.io_processors.interface": {
        "IOProcessor": shapes.IOProcessor,
        "IOProcessorInput": shapes.In,
        "IOProcessorOutput": shapes.Out,
    },
    "vllm.v1": {},
    "vllm.v1.engine": {"FinishReason": FinishReason},
    "vllm.v1.metrics": {},
    "vllm.v1.metrics.loggers": {
        "AggregateStatLoggerBase": shapes.AggregateStatLoggerBase,
        "StatLoggerBase": shapes.StatLoggerBase,
    },
    "vllm.v1.metrics.stats": {
        "FinishedRequestStats": shapes.FinishedRequestStats,
        "IterationStats": shapes.IterationStats,
        "PrefixCacheStats": shapes.PrefixCacheStats,
        "SchedulerStats": shapes.SchedulerStats,
    },
}


@contextlib.contextmanager
def stand_ins() -> Iterator[None]:
    """Make the modules importable within the context, unless vLLM is installed."""
    if "vllm" in sys.modules or importlib.util.find_spec("vllm") is not None:
        yield
        return
    modules = _modules()
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in modules.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


def _modules() -> dict[str, ModuleType]:
    modules = {name: ModuleType(name, "Stand-in of tenonry-vllm-shim.") for name in NAMES}
    for name, module in modules.items():
        module.__path__ = []
        vars(module).update(NAMES[name])
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(modules[parent], child, module)
    return modules
