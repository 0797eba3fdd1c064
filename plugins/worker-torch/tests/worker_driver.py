"""A hand-made scheduler: it cuts prompts into chunks, scatters blocks, mixes prefill and decode, and keeps several
steps in flight. Limited to the needs of the worker's tests.
"""

from __future__ import annotations

import random

import numpy as np

from tenonry.sampling_params import SamplingParams
from tenonry.step import NewRow, SchedulerOutput


class Request:
    def __init__(
        self,
        handle,
        prompt,
        sampling=None,
        max_tokens=8,
        stop_token_ids=(),
        bad_words=(),
        adapter=None,
        media=None,
    ):
        self.handle, self.prompt, self.adapter = handle, list(prompt), adapter
        self.sampling = sampling or SamplingParams(
            temperature=0.0, max_tokens=max_tokens, ignore_eos=True
        )
        self.max_tokens = max_tokens
        self.media = media
        self.whole = [] if media is None else media.whole.tolist()
        self.stop_token_ids, self.bad_words = stop_token_ids, bad_words
        self.output, self.logprobs, self.prompt_logprobs, self.failure = [], [], [], None
        self.row = None
        self.computed = self.pending = 0
        self.blocks = []

    @property
    def length(self):
        return len(self.prompt) + len(self.output) + self.pending

    @property
    def done(self):
        return len(self.output) + self.pending >= self.max_tokens or self.failure is not None


class Driver:
    """`execute(output)` runs one step and returns a future. `budget` tokens per step, `depth` steps in flight."""

    def __init__(
        self,
        execute,
        *,
        max_num_seqs,
        num_blocks,
        block_size,
        budget=10_000,
        depth=1,
        seed=0,
        preempt_every=0,
    ):
        self.execute, self.block_size, self.budget, self.depth = execute, block_size, budget, depth
        self.free_rows = list(range(max_num_seqs))
        self.free_blocks = list(range(1, num_blocks))
        random.Random(seed).shuffle(self.free_blocks)
        random.Random(seed + 1).shuffle(self.free_rows)
        self.waiting, self.running, self.gone = [], [], []
        self.in_flight, self.step_id, self.preempt_every = [], 0, preempt_every

    def run(self, requests):
        self.waiting = list(requests)
        while self.waiting or self.running or self.in_flight:
            if self.preempt_every and self.step_id % self.preempt_every == self.preempt_every - 1:
                self._preempt()
            output, served = self._schedule()
            if output is not None:
                self.in_flight.append((self.execute(output), served))
            if len(self.in_flight) >= self.depth or output is None:
                self._receive()
        if self.gone:
            self.execute(self._empty_step()).result()
        return requests

    def _empty_step(self):
        gone, self.gone, self.step_id = self.gone, [], self.step_id + 1
        return SchedulerOutput(step_id=self.step_id, gone=np.array(gone, np.int32))

    def _preempt(self):
        """The newest running request loses its row and blocks and comes back with all its tokens."""
        while self.in_flight:
            self._receive()
        if len(self.running) > 1:
            request = self.running.pop()
            self._release(request)
            request.computed = 0
            self.waiting.insert(0, request)

    def _release(self, request):
        self.gone.append(request.row)
        self.free_blocks[:0] = request.blocks
        self.free_rows.append(request.row)
        request.blocks, request.row = [], None

    def _schedule(self):
        left, rows, new, grown, served = self.budget, [], [], [], []
        for request in list(self.running):
            if request.done or not left:
                continue
            left -= self._take(request, left, rows, grown, served)
        while self.waiting and left and self.free_rows and len(self.free_blocks) > 8:
            request = self.waiting.pop(0)
            usable = [row for row in self.free_rows if row not in self.gone] or self.free_rows
            request.row = usable[0]
            self.free_rows.remove(request.row)
            tokens = np.array(request.prompt + request.output, np.int32)
            entry = NewRow(
                row=request.row, handle=request.handle, token_ids=tokens, num_computed=0,
                num_output=len(request.output),
                block_ids=(np.empty(0, np.int32),), sampling=request.sampling, stop_token_ids=request.stop_token_ids,
                bad_words=request.bad_words, adapter=request.adapter, media=request.media,
            )  # fmt: skip
            mine = []
            left -= self._take(request, left, rows, mine, served)
            entry.block_ids = (np.array([block for _, block in mine], np.int32),)
            new.append(entry)
            self.running.append(request)
        if not rows and not self.gone:
            return None, []
        self.step_id += 1
        gone, self.gone = self.gone, []
        columns = list(zip(*rows, strict=True)) or [[], [], [], []]
        return SchedulerOutput(
            step_id=self.step_id, gone=np.array(gone, np.int32), new=new,
            row=np.array(columns[0], np.int32), num_tokens=np.array(columns[1], np.int32),
            next_token=np.array(columns[2], np.int32), samples=np.array(columns[3], np.bool_),
            new_block_row=np.array([row for row, _ in grown], np.int32),
            new_block_group=np.zeros(len(grown), np.int32),
            new_block_id=np.array([block for _, block in grown], np.int32),
            generation=np.zeros(len(rows), np.int32), total_tokens=int(sum(columns[1])),
        ), served  # fmt: skip

    def _take(self, request, left, rows, grown, served):
        count = min(left, request.length - request.computed)
        end = request.computed + count
        for begin, size in request.whole:  # as many tokens as it needs, if it begins there
            if begin < end < begin + size:
                end = begin if begin > request.computed else begin + size
        count = end - request.computed
        while len(request.blocks) * self.block_size < end:
            request.blocks.append(self.free_blocks.pop())
            grown.append((request.row, request.blocks[-1]))
        samples = end == request.length
        rows.append((request.row, count, -1, samples))
        request.computed = end
        request.pending += samples
        served.append((request, request.row, samples))
        return count

    def _receive(self):
        if not self.in_flight:
            self._finish()
            return
        future, served = self.in_flight.pop(0)
        result = future.result()
        tokens = (
            dict(
                zip(
                    result.row.tolist(),
                    np.split(result.token_ids, result.offsets[1:-1]),
                    strict=False,
                )
            )
            if len(result.row)
            else {}
        )
        failed = dict(zip(result.failed_row.tolist(), result.failed_code.tolist(), strict=True))
        for request, row, samples in served:
            if samples:
                request.pending -= 1
            if row in failed:
                request.failure = failed[row]
            elif samples and request.failure is None:
                request.output.extend(tokens[row].tolist())
                if result.logprobs is not None and row in result.logprobs.row:
                    at = result.logprobs.row.tolist().index(row)
                    request.logprobs.append(
                        (
                            result.logprobs.token_ids[at],
                            result.logprobs.logprobs[at],
                            int(result.logprobs.rank[at]),
                        )
                    )
            request.prompt_logprobs += [part for part in result.prompt_logprobs if part.row == row]
        self._finish()

    def _finish(self):
        for request in list(self.running):
            if (
                len(request.output) >= request.max_tokens or request.failure is not None
            ) and not request.pending:
                self.running.remove(request)
                self._release(request)
