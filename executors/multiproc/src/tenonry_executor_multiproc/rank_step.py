"""One step in flight, as the engine holds it. Engine process."""

from __future__ import annotations

import time
from collections.abc import Callable

from tenonry.step import ModelRunnerOutput, SchedulerOutput
from tenonry_executor_multiproc.packets import Packet


class RankStep:
    """A StepFuture; see `RankGroup.launch`. No thread waits for it. `num_awaited`: ranks that have yet to answer."""

    __slots__ = (
        "_collect",
        "_is_answered",
        "launched",
        "num_awaited",
        "output",
        "packets",
        "sent",
        "sequence",
    )

    def __init__(
        self,
        is_answered: Callable[[RankStep], bool],
        collect: Callable[[RankStep, float | None], ModelRunnerOutput],
        sequence: int,
        sent: SchedulerOutput,
        num_awaited: int,
    ) -> None:
        self._is_answered = is_answered
        self._collect = collect
        self.sequence = sequence
        self.sent = sent
        self.launched = time.monotonic()
        self.num_awaited = num_awaited
        self.packets: dict[int, Packet] = {}  # by rank
        self.output: ModelRunnerOutput | None = None

    @property
    def step_id(self) -> int:
        return self.sent.step_id

    def done(self) -> bool:
        """Return True if `result` would return or raise without waiting."""
        return self._is_answered(self)

    def result(self, timeout: float | None = None) -> ModelRunnerOutput:
        """Raises the worker's error, EngineDeadError, or TimeoutError after `timeout` seconds."""
        if self.output is None:
            self.output = self._collect(self, timeout)
        return self.output
