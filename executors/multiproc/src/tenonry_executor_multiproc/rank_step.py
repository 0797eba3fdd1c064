"""The future of one step, and what went wrong in it. Engine process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tenonry.step import ModelRunnerOutput
    from tenonry_executor_multiproc.packets import Packet
    from tenonry_executor_multiproc.ranks import RankGroup


class StepFault(NamedTuple):
    """The first error of a step: whose, and until when to wait for a cause behind it."""

    error: Exception
    rank: int
    sequence: int
    settled_at: float


class RankStep:
    """A StepFuture; see `RankGroup.launch`. Nobody waits for it in a thread."""

    __slots__ = ("_group", "launched", "output", "packet", "sequence", "step_id")

    def __init__(self, group: RankGroup, sequence: int, step_id: int) -> None:
        self._group, self.sequence, self.step_id = group, sequence, step_id
        self.launched = time.monotonic()
        self.packet: Packet | None = None
        self.output: ModelRunnerOutput | None = None

    def done(self) -> bool:
        """Also true if `result` would raise."""
        return self._group.is_answered(self)

    def result(self, timeout: float | None = None) -> ModelRunnerOutput:
        """Raises the worker's error, EngineDeadError, or TimeoutError after `timeout` seconds."""
        if self.output is None:
            self.output = self._group.collect(self, timeout)
        return self.output
