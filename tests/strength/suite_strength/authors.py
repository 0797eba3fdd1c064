"""Schedulers as authors write them, for mutants of code that first-party ones use in one way only.

Any process. They count and decide by what the library returns, so that its promises show in their steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from suite_strength.expected import ExpectedTokens, spans
from tenonry.interfaces.scheduler import SchedulerContext
from tenonry.messages import OutputsByClient
from tenonry.request import Request, RequestStatus
from tenonry.stats import SchedulerStats
from tenonry.step import ModelRunnerOutput, SchedulerOutput
from tenonry_scheduler_static import StaticScheduler
from tenonry_scheduling import StepBuilder

NO_LIMIT = 10**9
STOPPED = (RequestStatus.PREEMPTED, RequestStatus.FINISHED)


class _Before(NamedTuple):
    """Budget of a step before a call."""

    tokens_left: int
    prompt_logprob_tokens_left: int


class OneByOneScheduler(StaticScheduler):
    """Runs each row by itself, as schedulers do that treat requests differently."""

    def choose(self, step: StepBuilder) -> None:
        for request in step.running:
            step.run(request)
        step.run_ready()  # those for which others have to leave
        for request in list(step.waiting):  # and not from the queue's own loop
            if not step.run(request):
                break


class CarefulScheduler(StaticScheduler):
    """Relies on each answer of the step: what ran is not run again, and what is refused has changed nothing.

    Decodes run together in every second step; what is left runs by itself, prompts of every second request in halves.
    """

    def __init__(self, context: SchedulerContext) -> None:
        super().__init__(context)
        self._expected = ExpectedTokens(self)
        self._was_refused = False  # a request has waited for an image or an adapter

    def started(self, request: Request, row: int, num_computed: int, now: float) -> None:
        self._expect(request.row == row, "a request started in another row")
        self._expect(request.handle not in self._expected.entered, "a request started twice")
        self._expect(now == self.context.clock(), "a request started at another time")
        self._expect(num_computed == self.rows.num_computed[row], "a request starts elsewhere")
        self._expected.entered[request.handle] = num_computed

    def stopped(self, request: Request) -> None:
        self._expect(request.status in STOPPED, f"a request stopped, and is {request.status.name}")
        del self._expected.entered[request.handle]

    def victim(self, running: list[Request]) -> Request:
        self._expect(len(running) > 1, "the last request is to be preempted")
        chosen = super().victim(running)
        self._expect(chosen is running[-1], "the victim is not the last request")
        return chosen

    def update_from_output(
        self, output: SchedulerOutput, result: ModelRunnerOutput
    ) -> OutputsByClient:
        """As the base class. Where no block is left, the last of several requests leaves its row between two steps."""
        found = super().update_from_output(output, result)
        is_crowded = self.blocks.num_free == 0 and len(self.rows.active) > 1
        if is_crowded and self.rows.step % 3 == 0 and self.context.kv_connector is None:
            last = self.rows.request(next(reversed(self.rows.active)))
            self.preempt(last)
            self._expect(last.row < 0 and last in self.waiting, "a preempted request has a row")
        return found

    def choose(self, step: StepBuilder) -> None:
        self._expect(not self.held, "requests of an earlier step are held")
        self._expected.begin_step()
        self._look_at_rows(step)
        self._look_at_requests(step)
        nothing = np.zeros(0, np.int32)
        self._expect(not step.run_rows(nothing, nothing), "no rows run")
        if self.rows.step % 5 == 4:
            self._run_ready(step)
        num_ran = self._run_decodes(step) if self.rows.step % 2 else 0
        num_ran += self._run_together(step) if self.rows.step % 3 == 0 else 0
        num_ran += self._run_prompts(step)
        if not num_ran:
            num_ran += self._noted(step, step.run_ready)
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
        running = self.rows.running()
        is_shared = running.flags.writeable or self.rows.as_i32(running).flags.writeable
        self._expect(not is_shared, "an author can write the rows that run")

    def _look_at_requests(self, step: StepBuilder) -> None:
        """Each request has the status of its place, and one without its K/V or its grammar does not run."""
        running = {request.handle for request in step.running}
        self._expect(running == self._expected.entered.keys(), "others run than have started")
        self._expect(step.num_running == len(running), "another number of requests runs")
        for request in self.requests.values():
            wanted = RequestStatus.PREEMPTED if request.num_preemptions else RequestStatus.WAITING
            if request.row >= 0:
                is_running = request.handle in running
                wanted = RequestStatus.RUNNING if is_running else RequestStatus.WAITING_FOR_KV
            name = request.status.name
            self._expect(request.status is wanted, f"the status of a request is {name}")
            if request.handle not in running and request not in self.waiting:
                self._expect(step.run(request) is False, "a request runs before it is ready")

    def _run_decodes(self, step: StepBuilder) -> int:
        rows = step.ready
        rows = rows[step.num_uncomputed(rows) == 1]
        num_ran = 0
        if len(rows):
            ones = np.ones(len(rows), np.int32)
            num_ran += self._noted(step, lambda: step.run_rows(rows, ones))
        if num_ran:
            self._expect(not len(np.intersect1d(rows, step.ready)), "rows that ran are ready")
        return num_ran

    def _run_together(self, step: StepBuilder) -> bool:
        """Run all that is ready, if its limits leave no more of it than the step has room for."""
        rows = step.ready
        if not len(rows):
            return False
        images_left, left = self._expected.images_left, step.tokens_left
        share = step.prompt_logprob_tokens_left
        uncomputed = step.num_uncomputed(rows).tolist()
        start = self.rows.num_computed[rows]
        counts = []
        for row, wanted in zip(rows.tolist(), uncomputed, strict=True):
            request, begin = self.rows.request(row), int(self.rows.num_computed[row])
            count = self._expected.tokens(_Before(NO_LIMIT, share), request, begin, wanted)
            self._expected.ran(request, begin, begin + count)
            share -= count * (wants_prompt(request) and not self._decodes(request))
            counts.append(count)
        ran = step.run_rows(rows, np.array(uncomputed))
        used = (self.rows.num_computed[rows] - start).tolist()
        if not ran:
            self._expected.images_left = images_left
        if not self.blocks.takes_snapshots:
            is_right = used == counts if ran else not any(used)
            self._expect(is_right, f"{used} of {counts} tokens ran together: {ran}")
            self._expect(ran == (0 < sum(counts) <= left) or step.full, f"{counts} ran: {ran}")
            is_left = not ran or share == step.prompt_logprob_tokens_left
            self._expect(is_left, f"{counts} tokens left {share} of the share of prompts")
        return ran

    def _run_ready(self, step: StepBuilder) -> None:
        """Run all rows; with nothing but budget to limit them, decodes come first and the budget is used up."""
        rows = step.ready
        requests = [self.rows.request(row) for row in rows.tolist()]
        uncomputed = step.num_uncomputed(rows)
        start = self.rows.num_computed[rows]
        left = step.tokens_left
        most = 3 if self.rows.step % 10 == 4 and self.chunked_prefill else None
        ran = self._noted(step, lambda: step.run_ready(most))
        self._expect(ran == (step.tokens_left < left), "run_ready ran, and took no tokens")
        limits = [each.source.media is not None or wants_prompt(each) for each in requests]
        is_limited = self.blocks.takes_snapshots or not self.chunked_prefill or any(limits)
        if not ran or step.preempted or is_limited:
            return
        used = self.rows.num_computed[rows] - start
        uncomputed = np.minimum(uncomputed, most or NO_LIMIT)
        wanted = min(int(uncomputed.sum()), left)
        self._expect(int(used.sum()) == wanted, f"{used} tokens of {uncomputed} ran, not {wanted}")
        num_decodes = int((uncomputed == 1).sum())
        num_ran = int(used[uncomputed == 1].sum())
        self._expect(num_ran == min(num_decodes, left), "a decode waits for a prompt")

    def _noted(self, step: StepBuilder, run: Callable[[], bool]) -> bool:
        """Run rows, and record the images that they encode."""
        before = {row: int(self.rows.num_computed[row]) for row in step.ready.tolist()}
        ran = run()
        for request in step.running:
            start, end = before.get(request.row), int(self.rows.num_computed[request.row])
            if start is not None and start < end:
                self._expected.ran(request, start, end)
        return ran

    def _run_prompts(self, step: StepBuilder) -> int:
        num_ran = 0
        for request in step.running:
            left = step.tokens_left
            half = self._part(step, request)
            wanted = self._wanted(step, request, half)
            start = int(self.rows.num_computed[request.row])
            share = step.prompt_logprob_tokens_left
            decodes = request.row >= 0 and self._decodes(request)
            ran = step.run(request, half)
            used = left - step.tokens_left
            taken = used if wants_prompt(request) and not decodes else 0
            is_left = share - taken == step.prompt_logprob_tokens_left
            self._expect(is_left, f"{used} tokens took another share of the prompts than {taken}")
            is_right = wanted is None or used == wanted or (step.full and not ran)
            self._expect(is_right, f"{used} of {wanted} tokens ran")
            self._expect(ran == (step.tokens_left < left), "a call ran, and took no tokens")
            num_ran += ran
            if ran:
                self._expected.ran(request, start, start + used)
                self._expect(not step.run(request), "a request runs twice")
                self._refused(step, request)
        return num_ran

    def _part(self, step: StepBuilder, request: Request) -> int | None:
        """Tokens to run of a request: all, half of the step, or all but two."""
        if request.handle % 2 or not self.chunked_prefill:
            return None
        if request.handle % 4 and request.row in step.ready:
            return max(1, int(step.num_uncomputed(np.array([request.row]))[0]) - 2)
        return 1 + step.tokens_left // 2

    def _decodes(self, request: Request) -> bool:
        return bool(self.rows.num_computed[request.row] >= request.num_prompt_tokens)

    def make_stats(self) -> SchedulerStats:
        """As the base class, which must name the numbers of its author."""
        stats = super().make_stats()
        self._expect(self.stats_extra.items() <= stats.extra.items(), "own numbers are missing")
        return stats

    def _wanted(self, step: StepBuilder, request: Request, most: int | None) -> int | None:
        """Tokens that a ready request runs; None where a snapshot of its state may limit them."""
        if self.blocks.takes_snapshots or request.row not in step.ready:
            return None
        uncomputed = int(step.num_uncomputed(np.array([request.row]))[0])
        start = int(self.rows.num_computed[request.row])
        return self._expected.tokens(step, request, start, min(uncomputed, most or uncomputed))

    def _fits(self, step: StepBuilder, request: Request) -> bool:
        """Return True if budget, rows and blocks suffice, and nothing else can make the request wait."""
        context = self.context
        has_grammar = request.source.sampling_params.structured_output is not None
        if context.kv_connector is not None or has_grammar:
            return False
        if self.blocks.takes_snapshots or step.full or self._expected.is_refused:
            return False
        if not self._may_share(step, request):
            return False
        if wants_prompt(request) and step.prompt_logprob_tokens_left <= 0:
            return False
        return self._has_room(step, request)

    def _has_room(self, step: StepBuilder, request: Request) -> bool:
        """Return True if budget, rows and blocks suffice for all its tokens."""
        context = self.context
        num_blocks = -(-request.num_tokens // context.kv_cache.block_size)
        num_needed = num_blocks * len(context.kv_cache.groups)
        has_room = step.free_rows > 0 and step.free_blocks >= num_needed and step.tokens_left > 0
        return has_room and (self.chunked_prefill or request.num_tokens <= step.tokens_left)

    def _may_share(self, step: StepBuilder, request: Request) -> bool:
        """Return True if the images of the request, from any token on, and its adapter fit into the step."""
        sizes = [stop - begin for begin, stop in spans(request, "spans")]
        if sum(sizes) > self._expected.images_left or spans(request, "whole"):
            return False  # for sure
        adapter, most = request.source.adapter, self.context.config.max_loras
        if adapter is None or not most:
            return True
        others = {each.source.adapter.digest for each in step.running if each.source.adapter}
        return adapter.digest in others or len(others) < most

    def _start(self, step: StepBuilder) -> int:
        num_started = 0
        was_full = step.full
        latest: Any = None
        is_listed = self.rows.step % 2  # every second step leaves the queue's own loop
        for request in list(step.waiting) if is_listed else step.waiting:
            place = (request.key, request.arrival)
            self._expect(latest is None or latest < place, "the queue is not in order")
            latest = place
            if was_full or (step.prompt_logprob_tokens_left <= 0 and wants_prompt(request)):
                break
            self._expect(request.row < 0, "a request that waits has a row")
            self._refused(step, request)
            free = step.free_rows
            fits = self._fits(step, request)
            left = step.tokens_left
            share = step.prompt_logprob_tokens_left
            started = step.run(request)
            used = left - step.tokens_left
            if started:
                self._check_start(step, request, used, left, share)
            else:
                has_place = left > 0 and free > 0
                self._expect(step.full or has_place, "a step without room is not full")
                self._check_refusal(step, request)
            self._expect(started or not fits, "a request that fits did not start")
            self._expect(not started or step.free_rows == free - 1, "a request started in no row")
            num_started += started
            if step.full:
                break
        return num_started

    def _check_start(
        self, step: StepBuilder, request: Request, used: int, left: int, share: int
    ) -> None:
        """The request computes as much of its prompt as its limits permit."""
        start = self._expected.entered[request.handle]
        before = _Before(left, share)
        wanted = self._expected.tokens(before, request, start, request.num_tokens - start)
        is_right = used == wanted or self.blocks.takes_snapshots
        self._expect(is_right, f"{used} of {wanted} tokens started")
        share -= used * (wants_prompt(request) and start < request.num_prompt_tokens)
        is_left = share == step.prompt_logprob_tokens_left
        self._expect(is_left, f"{used} tokens of a prompt leave another share than {share}")
        self._expected.ran(request, start, start + used)

    def _check_refusal(self, step: StepBuilder, request: Request) -> None:
        """The step is full, or the request waits for something else, for which it does not close the step at once."""
        source = request.source
        config = self.context.config
        has_limit = bool(config.max_images and source.media is not None)
        has_limit |= bool(config.max_loras and source.adapter is not None)
        has_grammar = source.sampling_params.structured_output is not None
        has_connector = self.context.kv_connector is not None  # which may decide later
        is_limited = self._expected.is_refused or not self._may_share(step, request)
        may_wait = has_grammar or has_connector or self.blocks.takes_snapshots
        may_wait |= has_limit and is_limited
        self._expect(
            has_connector or not step.run(request), "a request that waits runs when asked again"
        )
        self._expect(step.full or may_wait, "a request did not fit, but the step is not full")
        if has_limit and not self._was_refused and self._has_room(step, request):
            self._expect(
                not step.full, "the first request that waits for its image closes the step"
            )
        self.held[request.handle] = "careful"
        self._expected.is_refused |= has_limit
        self._was_refused |= has_limit

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


def wants_prompt(request: Request) -> bool:
    """Return True if the request has log-probabilities of its prompt."""
    return request.source.sampling_params.prompt_logprobs is not None
