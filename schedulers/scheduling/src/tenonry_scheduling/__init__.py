"""Building blocks for scheduler authors: columns, queue, step builder and base class. Engine process.

Write `choose(step)` in a subclass of `BaseScheduler`; everything else is done here, without a Python loop over requests
that merely decode one more token.
"""

from __future__ import annotations

from tenonry_scheduling.base import BaseScheduler
from tenonry_scheduling.blocks import BlockManager, Match
from tenonry_scheduling.budget import MAX_PROMPT_LOGPROB_TOKENS
from tenonry_scheduling.lifecycle import Lifecycle, length_classes
from tenonry_scheduling.rows import Rows
from tenonry_scheduling.step_builder import StepBuilder
from tenonry_scheduling.waiting import WaitingQueue

__all__ = [
    "MAX_PROMPT_LOGPROB_TOKENS",
    "BaseScheduler",
    "BlockManager",
    "Lifecycle",
    "Match",
    "Rows",
    "StepBuilder",
    "WaitingQueue",
    "length_classes",
]
