"""A batching scheduler and a policy as authors write them, which check what the library promises. Any process."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from suite_strength.authors import wants_prompt
from tenonry.interfaces.scheduler import SchedulerContext
from tenonry.request import Request
from tenonry.step import SchedulerOutput
from tenonry_scheduler_batching import AdmissionState, SchedulingPolicy
from tenonry_scheduler_batching.scheduler import BatchingScheduler
from tenonry_scheduling import StepBuilder


class BoundedScheduler(BatchingScheduler):
    """Checks the bounds that its options set: tokens of a prompt in a step, and blocks left before a start."""

    def __init__(self, context: SchedulerContext) -> None:
        super().__init__(context)
        self._given: Any = context.options
        self._rows_started: list[int] = []

    def started(self, request: Request, row: int, num_computed: int, now: float) -> None:
        super().started(request, row, num_computed, now)
        self._rows_started.append(row)

    def choose(self, step: StepBuilder) -> None:
        self._rows_started.clear()
        super().choose(step)
        kinds = {group.kind for group in self.context.kv_cache.groups}
        if self.context.kv_connector is not None or kinds != {"full"}:
            return  # loaded rows start whenever they run, and states have no blocks
        least = int(self._given.watermark * self.blocks.num_total)
        if not self._rows_started:
            if step.free_blocks >= least and self._may_start(step):
                raise AssertionError(f"no request starts with {step.free_blocks} free blocks")
        elif step.num_running > len(self._rows_started):  # not into an empty engine
            tables = [self.blocks.table(row) for row in self._rows_started]
            num_free = step.free_blocks + sum(len(ids) for table in tables for ids in table)
            if num_free < least:
                raise AssertionError(f"a request started with {num_free} free blocks")

    def _may_start(self, step: StepBuilder) -> bool:
        """Return True if nothing but too few blocks makes the first request wait."""
        first = next(iter(step.waiting), None)
        if first is None or step.full or step.preempted or self.policy.admit is not None:
            return False
        source, params = first.source, first.source.sampling_params
        waits = source.adapter or params.structured_output
        has_limit = bool(waits) or source.media is not None or wants_prompt(first)
        return not has_limit and step.free_rows > 0 and step.tokens_left > 0

    def schedule(self) -> SchedulerOutput:
        output = super().schedule()
        most = self._given.long_prefill_token_threshold if self.chunked_prefill else None
        for row, count in zip(output.row.tolist(), output.num_tokens.tolist(), strict=True):
            is_whole = self.rows.request(row).source.media is not None
            if most is not None and count > most and not is_whole:
                raise AssertionError(f"row {row} computes {count} tokens in a step, not {most}")
        return output


class AdmittingPolicy(SchedulingPolicy):
    """Starts a request where blocks are left for it, or nothing runs; urgent ones first, and last to be preempted."""

    starvation_free = False

    def __init__(self, options: BaseModel | None = None) -> None:
        super().__init__(options)
        if self.options is not options:
            raise AssertionError("the options of a policy are not those of its constructor")
        self._num_admitted = 0

    def order(self, request: Request) -> Any:
        if super().order(request) != request.arrival:
            raise AssertionError("the default order is not that of arrival")
        return (request.priority, request.arrival)

    def admit(self, request: Request, state: AdmissionState) -> bool:
        if state.tokens_left < 1 or state.num_running < 0 or state.free_blocks < 0:
            raise AssertionError(f"nothing can start, yet a request is to be admitted: {state}")
        if not super().admit(request, state):
            raise AssertionError("the default of a policy holds a request back")
        is_admitted = not state.num_running or (state.free_blocks > 2 and state.tokens_left > 1)
        self._num_admitted += is_admitted
        return is_admitted

    def victim(self, running: list[Request]) -> Request:
        if not 2 <= len(running) <= self._num_admitted:
            raise AssertionError(f"{len(running)} run, {self._num_admitted} were admitted")
        if super().victim(running) is not running[-1]:
            raise AssertionError("the default victim is not the request that started last")
        return max(running, key=self.order)
