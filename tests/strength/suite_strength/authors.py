"""Schedulers and a policy as authors write them, for mutants of code that first-party ones use in one way only.

Any process. They count and decide by what the library returns, so that its promises show in their steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import BaseModel

from tenonry.request import Request
from tenonry.stats import SchedulerStats
from tenonry_scheduler_batching.policy import AdmissionState, SchedulingPolicy
from tenonry_scheduler_static import StaticScheduler
from tenonry_scheduling import StepBuilder


class OneByOneScheduler(StaticScheduler):
    """Runs each row by itself, as schedulers do that treat requests differently."""

    def choose(self, step: StepBuilder) -> None:
        for request in step.running:
            step.run(request)
        step.run_ready()  # those for which others have to leave
        for request in step.waiting:
            if not step.run(request):
                break


class CarefulScheduler(StaticScheduler):
    """Relies on each answer of the step: what ran is not run again, and what is refused has changed nothing.

    Decodes run together in every second step; what is left runs by itself, prompts of every second request in halves.
    """

    def choose(self, step: StepBuilder) -> None:
        self._look_at_rows(step)
        num_ran = self._run_decodes(step) if self.rows.step % 2 else 0
        num_ran += self._run_prompts(step)
        if not num_ran:
            num_ran += step.run_ready()
        num_ran += self._start(step)
        self.stats_extra["calls_that_ran"] = num_ran

    def _look_at_rows(self, step: StepBuilder) -> None:
        """The rows are those of requests, and only such have a prompt to compute."""
        used = set()
        for row in range(self.rows.size):
            try:
                self._expect(self.rows.request(row).row == row, "a request is in another row")
            except LookupError:
                continue
            used.add(row)
        self._expect(len(used) + step.free_rows == self.rows.size, "a row is neither free nor used")
        self._expect(used >= self.rows.prompt_logprob_rows, "a free row has a prompt")

    def _run_decodes(self, step: StepBuilder) -> int:
        rows = step.ready
        rows = rows[step.num_uncomputed(rows) == 1]
        num_ran = 0
        if len(rows):
            num_ran += step.run_rows(rows, np.ones(len(rows), np.int32))
        if num_ran:
            self._expect(not len(np.intersect1d(rows, step.ready)), "rows that ran are ready")
        return num_ran

    def _run_prompts(self, step: StepBuilder) -> int:
        num_ran = 0
        for request in step.running:
            left = step.tokens_left
            half = None if request.handle % 2 or not self.chunked_prefill else 1 + left // 2
            wanted = self._wanted(step, request, half)
            share = step.prompt_logprob_tokens_left
            decodes = request.row >= 0 and self._decodes(request)
            ran = step.run(request, half)
            used = left - step.tokens_left
            is_left = not decodes or share == step.prompt_logprob_tokens_left
            self._expect(is_left, "a decode took of the share of prompts")
            is_right = wanted is None or used == wanted or (step.full and not ran)
            self._expect(is_right, f"{used} of {wanted} tokens ran")
            self._expect(ran == (step.tokens_left < left), "a call ran, and took no tokens")
            num_ran += ran
            if ran:
                self._expect(not step.run(request), "a request runs twice")
                self._refused(step, request)
        return num_ran

    def _decodes(self, request: Request) -> bool:
        return bool(self.rows.num_computed[request.row] >= request.num_prompt_tokens)

    def make_stats(self) -> SchedulerStats:
        """As the base class, which must name the numbers of its author."""
        stats = super().make_stats()
        self._expect(self.stats_extra.items() <= stats.extra.items(), "own numbers are missing")
        return stats

    def _wanted(self, step: StepBuilder, request: Request, most: int | None) -> int | None:
        """Tokens that a ready request runs; None where images, states or the share of others may limit them."""
        source = request.source
        is_limited = source.media is not None or self.blocks.takes_snapshots
        if is_limited or _wants_prompt(request) or request.row not in step.ready:
            return None
        uncomputed = int(step.num_uncomputed(np.array([request.row]))[0])
        if not self.chunked_prefill:
            return uncomputed if uncomputed <= step.tokens_left else 0
        return min(uncomputed, most or uncomputed, step.tokens_left)

    def _fits(self, step: StepBuilder, request: Request) -> bool:
        """Return True if budget, rows and blocks suffice, and nothing else can make the request wait."""
        lifecycle, context = self.lifecycle, self.context
        parts = (lifecycle.encoder, lifecycle.adapters, context.kv_connector)
        has_grammar = request.source.sampling_params.structured_output is not None
        if any(part is not None for part in parts) or has_grammar:
            return False
        if self.blocks.takes_snapshots or step.full:
            return False
        if _wants_prompt(request) and step.prompt_logprob_tokens_left <= 0:
            return False
        num_blocks = -(-request.num_tokens // context.kv_cache.block_size)
        num_needed = num_blocks * len(context.kv_cache.groups)
        has_room = step.free_rows > 0 and step.free_blocks >= num_needed and step.tokens_left > 0
        return has_room and (self.chunked_prefill or request.num_tokens <= step.tokens_left)

    def _start(self, step: StepBuilder) -> int:
        num_started = 0
        was_full = step.full
        for request in step.waiting:
            if was_full or (step.prompt_logprob_tokens_left <= 0 and _wants_prompt(request)):
                break
            self._expect(request.row < 0, "a request that waits has a row")
            self._refused(step, request)
            free = step.free_rows
            fits = self._fits(step, request)
            started = step.run(request)
            self._expect(started or not fits, "a request that fits did not start")
            self._expect(not started or step.free_rows == free - 1, "a request started in no row")
            num_started += started
            if step.full:
                break
        return num_started

    def _refused(self, step: StepBuilder, request: Request) -> None:
        """Neither a request that waits nor one that runs in this step can be preempted."""
        try:
            step.preempt(request)
        except ValueError:
            return
        self._expect(False, "a request was preempted that may not be")

    @staticmethod
    def _expect(holds: bool, detail: str) -> None:
        if not holds:
            raise AssertionError(detail)


def _wants_prompt(request: Request) -> bool:
    return request.source.sampling_params.prompt_logprobs is not None


class AdmittingPolicy(SchedulingPolicy):
    """Starts a request where blocks are left for it, or nothing runs; urgent ones first, and last to be preempted."""

    starvation_free = False

    def __init__(self, options: BaseModel | None = None) -> None:
        super().__init__(options)
        self._num_admitted = 0

    def order(self, request: Request) -> Any:
        return (request.priority, request.arrival)

    def admit(self, request: Request, state: AdmissionState) -> bool:
        if state.tokens_left < 1 or state.num_running < 0 or state.free_blocks < 0:
            raise AssertionError(f"nothing can start, yet a request is to be admitted: {state}")
        is_admitted = not state.num_running or (state.free_blocks > 2 and state.tokens_left > 1)
        self._num_admitted += is_admitted
        return is_admitted

    def victim(self, running: list[Request]) -> Request:
        if not 2 <= len(running) <= self._num_admitted:
            raise AssertionError(f"{len(running)} run, {self._num_admitted} were admitted")
        return max(running, key=self.order)
