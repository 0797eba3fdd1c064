"""Setup of the worker suite, and its own scenarios. Test process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from tenonry.interfaces.scheduler import SchedulerContext
from tenonry.interfaces.worker import Worker
from tenonry.outputs import FinishReason
from tenonry.sampling_params import StructuredOutput
from tenonry.step import ModelRunnerOutput, SchedulerOutput
from tenonry_kvcache import KVCacheManager
from tenonry_scheduling import BaseScheduler
from tenonry_testkit.fakes.blocks import SimpleBlocks
from tenonry_testkit.fakes.scheduler import ReferenceScheduler
from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.result_shapes import check_shapes

GRAMMARS_S = 20.0  # for three small grammars


class ScatteredBlocks(SimpleBlocks):
    """Allocates blocks in an arbitrary order."""

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
    """Request grammars until all are ready; one of them is invalid, and its request fails alone."""
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


def a_row_fails_alone(harness: SchedulerHarness, prompt_ids: Sequence[int]) -> None:
    """Check that a request without a possible token ends in an error; the other row of its steps continues."""
    stop_id = prompt_ids[0]
    impossible = harness.add(
        list(prompt_ids[:5]),
        6,
        min_tokens=2,
        stop_token_ids=(stop_id,),
        allowed_token_ids=(stop_id,),
    )
    harness.add(list(prompt_ids[:3]), 6)
    harness.drain()
    finished = impossible.finished
    assert finished is not None
    assert finished.reason is FinishReason.ERROR, (
        f"a request that may sample only id {stop_id}, which min_tokens forbids, ended with {finished.reason} "
        f"after {impossible.token_ids}; expected its row in failed_row with RowFailure.SAMPLING"
    )


def rows_end_in_rounds(
    harness: SchedulerHarness, prompt_ids: Sequence[int], vocab_size: int
) -> int:
    """Run requests together: one ends by its limit, one by a stop id, and one not before min_tokens.

    Returns the maximum tokens of a row in one result.
    """
    prompt = list(prompt_ids[:4])
    most = 0
    parameters: list[dict[str, Any]] = [{}, {"temperature": 1.0, "seed": 7}]
    for fields in parameters:
        free = harness.add(prompt, 12, **fields)
        harness.drain()
        stops = {"stop_token_ids": free.token_ids[3:5]}
        limited = harness.add(prompt, 11, **fields)
        stopped = harness.add(prompt, 12, **stops, **fields)
        held = harness.add(prompt, 12, min_tokens=7, **stops, **fields)
        entries = (limited, stopped, held)
        sampled = 0
        while harness.scheduler.has_requests() and harness.launch():
            output, future = harness.in_flight[-1]
            result = future.result()
            check_shapes(output, result, vocab_size)
            sampled += len(result.token_ids)
            counts = np.diff(result.offsets)
            most = max(most, counts.max(initial=0))
            harness.deliver()
        harness.drain()
        wanted = sum(len(entry.token_ids) for entry in entries)
        assert sampled == wanted, f"{sampled} tokens were sampled, {wanted} up to the ends of rows"
    return most
