"""What the suite of workers runs them with, and a scenario of its own. Test process."""

from __future__ import annotations

import time

import numpy as np

from tenonry.interfaces.scheduler import SchedulerContext
from tenonry.interfaces.worker import Worker
from tenonry.sampling_params import StructuredOutput
from tenonry.step import ModelRunnerOutput, SchedulerOutput
from tenonry_kvcache import KVCacheManager
from tenonry_scheduling import BaseScheduler
from tenonry_testkit.fakes.blocks import SimpleBlocks
from tenonry_testkit.fakes.scheduler import ReferenceScheduler

GRAMMARS_S = 20.0  # for three small grammars


class ScatteredBlocks(SimpleBlocks):
    """Hands out blocks in an order that no worker should rely on."""

    def __init__(self, context: SchedulerContext) -> None:
        super().__init__(context)
        np.random.default_rng(7).shuffle(self._free)

    def _release(self, blocks: list[int]) -> None:
        self._free += blocks


class ScatteringScheduler(ReferenceScheduler):
    """The reference scheduler over scattered blocks."""

    def __init__(self, context: SchedulerContext) -> None:
        BaseScheduler.__init__(self, context, ScatteredBlocks(context))


class CachingScheduler(ReferenceScheduler):
    """The reference scheduler with a prefix cache."""

    def __init__(self, context: SchedulerContext) -> None:
        BaseScheduler.__init__(self, context, KVCacheManager(context))


def grammars_are_compiled(worker: Worker) -> None:
    """Ask for grammars until all are there, one of them of what cannot be compiled: its request fails alone."""
    asked: dict[int, StructuredOutput | None] = {
        4: StructuredOutput(regex="a+"),
        7: StructuredOutput(regex="(a"),
        9: StructuredOutput(json='{"type": "object"}'),
    }
    until = time.monotonic() + GRAMMARS_S
    step_id = 0
    while asked and time.monotonic() < until:
        answer = worker.execute_model(SchedulerOutput(step_id=step_id, prepare=asked))
        result = answer if isinstance(answer, ModelRunnerOutput) else answer.result()
        stray = set(result.prepared) - asked.keys()
        assert not stray, f"`prepared` names {stray}, which step {step_id} did not ask for"
        asked = dict.fromkeys(asked.keys() - set(result.prepared))
        step_id += 1
    assert not asked, f"`prepared` did not name {set(asked)} in {GRAMMARS_S} s and {step_id} steps"
