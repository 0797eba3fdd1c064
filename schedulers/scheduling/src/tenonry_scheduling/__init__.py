"""Building blocks of schedulers (columns, queue, step builder, base class) and columns of workers.

Implement `choose(step)` in a subclass of `BaseScheduler`; this library does everything else, without a Python loop over
decoding requests. Names load on first use: front ends import `tenonry_scheduling.settings` alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tenonry_scheduling.base import BaseScheduler
    from tenonry_scheduling.blocks import BlockManager, Match
    from tenonry_scheduling.budget import MAX_PROMPT_LOGPROB_TOKENS
    from tenonry_scheduling.columns import BatchState, StepInputs
    from tenonry_scheduling.lifecycle import Lifecycle, length_classes
    from tenonry_scheduling.rows import Rows
    from tenonry_scheduling.step_builder import StepBuilder
    from tenonry_scheduling.waiting import WaitingQueue

_MODULES = {
    "MAX_PROMPT_LOGPROB_TOKENS": "budget",
    "BaseScheduler": "base",
    "BatchState": "columns",
    "BlockManager": "blocks",
    "Lifecycle": "lifecycle",
    "Match": "blocks",
    "Rows": "rows",
    "StepBuilder": "step_builder",
    "StepInputs": "columns",
    "WaitingQueue": "waiting",
    "length_classes": "lifecycle",
}
__all__ = [
    "MAX_PROMPT_LOGPROB_TOKENS",
    "BaseScheduler",
    "BatchState",
    "BlockManager",
    "Lifecycle",
    "Match",
    "Rows",
    "StepBuilder",
    "StepInputs",
    "WaitingQueue",
    "length_classes",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
