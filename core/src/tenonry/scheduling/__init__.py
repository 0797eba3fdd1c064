"""What scheduler authors build on: columns, queue, step builder, base class and validator. Engine process.

Write `choose(step)` in a subclass of `BaseScheduler`; everything else is done here, without a Python loop over requests
that merely decode one more token.
"""

from __future__ import annotations

from tenonry.scheduling.base import BaseScheduler
from tenonry.scheduling.blocks import BlockManager, Match
from tenonry.scheduling.rows import Rows
from tenonry.scheduling.step_builder import StepBuilder
from tenonry.scheduling.validator import StepValidator
from tenonry.scheduling.waiting import WaitingQueue

__all__ = ["BaseScheduler", "BlockManager", "Match", "Rows", "StepBuilder", "StepValidator", "WaitingQueue"]
